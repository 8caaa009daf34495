"""Somebody who types verbs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


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

    def type(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`paceline ARGUMENTS` in that folder."""
        self._typed += 1
        out, err = (self._folder / f"{self._typed}.{stream}" for stream in ("out", "err"))
        code = self._ordered(arguments, folder, out, err, {})
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())

    def type_on(self, terminal: str, folder: Path, *arguments: str) -> int:
        """The same on a terminal of 80 columns, which somebody must read; returns the exit code."""
        path = Path(terminal)
        return self._ordered(arguments, folder, path, path, {"TERM": "xterm", "COLUMNS": "80"})

    def _ordered(
        self, arguments: tuple[str, ...], folder: Path, out: Path, err: Path, environment: dict[str, str]
    ) -> int:
        order = {"arguments": arguments, "folder": str(folder), "out": str(out), "err": str(err)}
        print(json.dumps(order | {"environment": environment}), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, "the process that types verbs has ended"
        return int(answer)

    def close(self) -> None:
        print(file=self._server.stdin, flush=True)
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()
