"""Brings a host's part of the record home: no disk is shared between hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.launch.cluster.messages import Grown

GROW = (".jsonl", ".txt")  # files that only grow: their new lines are sent while the run goes on
CHUNK = 1 << 20  # bytes
SCRATCH = "scratch"


class RecordSync:
    """Called from the agent's loop. Every byte is sent once, in order."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._sent = folder, dict[str, int]()

    def grown(self) -> Iterator[Grown]:
        """What has been added to the files that only grow."""
        for path in sorted(self._folder.iterdir()):
            if path.suffix in GROW and path.is_file():
                yield from self._rest(path)

    def everything(self) -> Iterator[Grown]:
        """All that was not sent before. Called once, when no process writes any more."""
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and SCRATCH not in path.relative_to(self._folder).parts:
                yield from self._rest(path)

    def _rest(self, path: Path) -> Iterator[Grown]:
        name = str(path.relative_to(self._folder))
        with path.open("rb") as file:
            file.seek(self._sent.get(name, 0))
            while data := file.read(CHUNK):
                self._sent[name] = self._sent.get(name, 0) + len(data)
                yield Grown(name, data)
