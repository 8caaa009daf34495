"""Hosts over ssh: an agent is a command on the host, and ends with its connection."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.launch.cluster.hosts import HostSpec

HERE = ("localhost", "127.0.0.1")  # no ssh is needed
# Never asks for a password, and notices a dead connection.
OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "LogLevel=ERROR")
AGENT = ("-P", "-m", "paceline.launch.cluster.agent")


@dataclass(frozen=True)
class SshHosts:
    """`ssh` is the command with its own options, as in `rsync -e`; keys and users belong into ~/.ssh/config. `python`
    is the interpreter on the hosts."""

    listed: Sequence[HostSpec]
    ssh: str = "ssh"
    python: str = sys.executable

    def hosts(self) -> list[HostSpec]:
        return list(self.listed)

    def start_agent(self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes) -> SshAgent:
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), self.python, *AGENT]
        if host.name not in HERE:
            options = [word for option in OPTIONS for word in ("-o", option)]
            command = [*shlex.split(self.ssh), "-T", *options, host.name, f"exec {shlex.join(command)}"]
        return SshAgent(command, secret_on_stdin)


class SshAgent:
    """One connection. Its standard input stays open: the agent ends when it is closed, also by the end of this
    process."""

    def __init__(self, command: list[str], secret: bytes) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C reaches only the controller, which decides
            )
        except OSError as error:
            self._process = None
            self._said.write(f"{command[0]} cannot be started: {error.strerror}".encode())
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
