"""An agent as a process of this host: the agent itself, or a command such as ssh that reaches another host."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

AGENT = ("-P", "-m", "paceline.launch.cluster.agent")


def agent_command(variables: Mapping[str, str], python: str = sys.executable) -> list[str]:
    """The command of an agent, as it is typed on its host."""
    return ["env", *(f"{name}={value}" for name, value in variables.items()), python, *AGENT]


class ProcessAgent:
    """The process. Its standard input stays open: the agent ends when it is closed, also by the end of this process.
    `environment` replaces that of this process."""

    def __init__(self, command: Sequence[str], secret: bytes, environment: Mapping[str, str] | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the controller, which decides
            )
        except OSError as error:
            self._process = None
            self._said.write(f"{shlex.quote(command[0])} cannot be started: {error.strerror}".encode())
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(secret + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: `ended` says why

    def ended(self) -> str | None:
        if self._process is not None and self._process.poll() is None:
            return None
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 4096))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"it ended with code {self._process.returncode if self._process else 1}"

    def kill(self, patience: float = 5.0) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
            try:
                self._process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._said.close()
