"""Somebody who runs scripts in plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from paceline.settings import LAUNCHER_VARIABLES


class PlainPython:
    """Runs scripts, one after the other, in processes that know nothing of Paceline: see `plain_python`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ran = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("plain_python.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES},
        )

    def run(self, folder: Path, script: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python SCRIPT ARGUMENTS` in that folder."""
        self._ran += 1
        out, err = (self.folder / f"{self._ran}.{stream}" for stream in ("out", "err"))
        order = {"script": str(folder / script), "arguments": arguments, "folder": str(folder)}
        print(json.dumps(order | {"out": str(out), "err": str(err)}), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        return subprocess.CompletedProcess([str(script), *arguments], code, out.read_text(), err.read_text())

    def printed(self, folder: Path, script: Path | str, *arguments: str) -> str:
        """What a script prints that must not fail."""
        done = self.run(folder, script, *arguments)
        assert done.returncode == 0, f"plain python fails: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        print(file=self._server.stdin, flush=True)
        self._server.stdin.close()
        self._server.wait(60)
        self._server.stdout.close()
