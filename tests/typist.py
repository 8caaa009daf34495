"""Somebody who types verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Begun:
    """A command line that runs. `stdout` is read as from a pipe."""

    def __init__(self, pid: int, out: Path, err: Path, wait: Callable[[int], int]) -> None:
        self.pid, self._err, self._wait = pid, err, wait
        self.stdout = open(out)  # noqa: SIM115

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Waits for its end: the exit code, the rest of standard output, and standard error."""
        with self.stdout:
            rest = self.stdout.read()
        return self._wait(self.pid), rest, self._err.read_text()


class Typist:
    """Types command lines, one after the other: see `verb_server`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._typed = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("verb_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def type(self, folder: Path, *arguments: str, program: str = "paceline") -> subprocess.CompletedProcess[str]:
        """`paceline ARGUMENTS` in that folder, or `horovodrun ARGUMENTS`."""
        out, err = self._streams("out", "err")
        code = self._wait(self._order(arguments, folder, out, err, {}, program))
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())

    def type_on(self, terminal: str, folder: Path, *arguments: str) -> int:
        """The same on a terminal of 80 columns, which somebody must read; returns the exit code."""
        path = Path(terminal)
        environment = {"TERM": "xterm", "COLUMNS": "80"}
        return self._wait(self._order(arguments, folder, path, path, environment))

    def begin(self, folder: Path, *arguments: str) -> Begun:
        """The same without waiting for its end. Until `Begun.end`, nothing is typed that starts workers."""
        out, err = self._streams("out", "err")
        os.mkfifo(out)
        return Begun(self._order(arguments, folder, out, err, {}), out, err, self._wait)

    def _streams(self, *names: str) -> list[Path]:
        self._typed += 1
        return [self._folder / f"{self._typed}.{name}" for name in names]

    def _order(
        self,
        arguments: tuple[str, ...],
        folder: Path,
        out: Path,
        err: Path,
        environment: dict[str, str],
        program: str = "paceline",
    ) -> int:
        """The process of a command line that was begun."""
        order = {"program": program, "arguments": arguments, "folder": str(folder), "environment": environment}
        return self._ask(order | {"out": str(out), "err": str(err)})

    def _wait(self, pid: int) -> int:
        return self._ask({"wait": pid})

    def _ask(self, order: dict[str, Any]) -> int:
        print(json.dumps(order), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, "the process that types verbs has ended"
        return int(answer)

    def close(self) -> None:
        print(file=self._server.stdin, flush=True)
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()
