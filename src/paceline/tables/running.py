"""The figures of a run in progress, for the live line and the live page: what `figures` says of the steps so far.

Reads only what the workers have appended to their step files since the last look. Where the files are not here yet (a
run on several hosts), the steps that the workers report from time to time stand in.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record import Step
from paceline.record.inside import Folder
from paceline.tables.figures import Figures, columns_of, figures

MOST = 5_000  # steps of each worker that count: the last ones of a long run
MOST_ROWS, FEWEST = 40_000, 200  # … and those of all workers together, but at least so many of each
PIECE = 4 << 20  # bytes of a worker's steps that are read at once
FIRST = 2 << 20  # bytes at the end of a file whose run is long under way: about MOST steps
PAUSE = 20  # times as long as the figures took to compute, before they are computed again: 5 % of a core at most


class RunningFigures:
    """One per run. Not for several threads."""

    def __init__(self, record: Path | Folder | None = None) -> None:
        self._folder = None if record is None else Folder.of(record)
        self._at: dict[int, int] = {}  # bytes read of each rank's file
        self._read: dict[int, deque[Step]] = {}
        self._reported: dict[int, deque[Step]] = {}
        self._known = Figures()
        self._next = 0.0  # when the figures may be computed again

    def report(self, steps: Mapping[int, Step]) -> None:
        """Takes the latest step of each worker."""
        for rank, step in steps.items():
            mine = self._reported.setdefault(rank, deque(maxlen=MOST))
            if not mine or mine[-1].step < step.step:
                mine.append(step)
            self._at.setdefault(rank, -1)

    def follow(self, ranks: list[int]) -> None:
        """Names the workers whose files are read."""
        for rank in ranks:
            self._at.setdefault(rank, -1)

    def figures(self, *, now: bool = False) -> Figures:
        """The figures so far; with `now`, certainly of all steps in the files, else at most a moment old."""
        begun = time.monotonic()
        if not now and begun < self._next:
            return self._known
        for rank in self._at:
            self._look(rank)
        # A launcher of many workers must not be busy with this for seconds.
        most = max(FEWEST, MOST_ROWS // max(len(self._at), 1))
        by_rank = {rank: list(self._read.get(rank) or self._reported.get(rank) or ()) for rank in self._at}
        self._known = figures({rank: columns_of(steps[-most:]) for rank, steps in by_rank.items()})
        self._next = begun + (1 + PAUSE) * (time.monotonic() - begun)
        return self._known

    def _look(self, rank: int) -> None:
        if self._folder is None:
            return
        try:
            with self._folder.file(f"steps.rank{rank}.jsonl").open() as file:
                size = file.seek(0, 2)
                if self._at[rank] > size:  # the run was started again
                    self._at[rank] = 0
                    self._read.pop(rank, None)
                if self._at[rank] < 0:
                    self._at[rank] = max(0, size - FIRST)
                    file.seek(self._at[rank])
                    if self._at[rank]:
                        self._at[rank] += len(file.readline())
                file.seek(self._at[rank])
                data = file.read(PIECE)
        except (OSError, RecordError):
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at[rank] += len(whole)
        mine = self._read.setdefault(rank, deque(maxlen=MOST))
        for line in whole.splitlines():
            try:
                mine.append(_decoder.decode(line))
            except (msgspec.DecodeError, RecursionError):
                continue  # a damaged line is for the readers of the record to report


_decoder = msgspec.json.Decoder(Step)
