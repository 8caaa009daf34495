"""Which worker speaks for the run: what it prints is what the run prints.

All workers print the same bytes. When the one that speaks is lost, the next one goes on at the byte where it stopped:
the launcher counts what was shown, and keeps what the others have printed beyond that. In the slice view workers print
the same lines with other numbers in them: there lines are counted. In a script that distributes itself each worker
prints what it wants: there the next one is shown from then on, and what the lost one had printed before it was lost.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.launch.events import Output
from paceline.settings import RunSettings


class Place(NamedTuple):
    """A place in what a worker prints: whole lines, and bytes after them. No lines where only bytes count."""

    lines: int = 0
    column: int = 0


class Voice:
    """The output of all workers of an elastic run; of any other, rank 0's."""

    def __init__(self, *, alike: bool = True, by_lines: bool = False) -> None:
        """`alike`: all workers print the same. `by_lines`: … but for the numbers in their lines."""
        self.rank, self._alike, self._by_lines = 0, alike, by_lines
        self._lost: set[int] = set()  # spoke before: their end may be noticed before their last lines are read
        self._shown: dict[str, Place] = {}  # how far each stream was shown
        self._printed: dict[tuple[int, str], Place] = {}  # … and how far each worker has printed
        self._ahead: dict[tuple[int, str], tuple[Place, bytes]] = {}  # beyond what was shown: from where, and what

    def hear(self, output: Output) -> Output | None:
        """What to show of it, if anything."""
        if not self._alike:
            return output if output.rank == self.rank or output.rank in self._lost else None
        which, shown = (output.rank, output.stream), self._shown.get(output.stream, Place())
        before = self._printed.get(which, Place())
        self._printed[which] = printed = self._after(before, output.data)
        if output.rank != self.rank:
            begun, kept = self._ahead.get(which, (before, b""))
            self._ahead[which] = self._beyond(begun, kept + output.data, shown)
            return None
        _, new = self._beyond(before, output.data, shown)  # a worker that has just begun to speak may be behind
        self._shown[output.stream] = max(shown, printed)
        return Output(output.rank, output.stream, new) if new else None

    def move(self, rank: int) -> list[Output]:
        """From now on this worker speaks. Returns what it has printed already and nobody has seen."""
        self._lost.add(self.rank)
        self.rank = rank
        missed = []
        for speaker, stream in [which for which in self._ahead if which[0] == rank]:
            shown = self._shown.get(stream, Place())
            _, new = self._beyond(*self._ahead.pop((speaker, stream)), shown)
            if new:
                missed.append(Output(rank, stream, new))  # type: ignore[arg-type]
                self._shown[stream] = max(shown, self._printed[speaker, stream])
        return missed

    def _after(self, place: Place, data: bytes) -> Place:
        """The place behind this data, which begins at a place."""
        lines = data.count(b"\n") if self._by_lines else 0
        if not lines:
            return Place(place.lines, place.column + len(data))
        return Place(place.lines + lines, len(data) - data.rindex(b"\n") - 1)

    def _beyond(self, place: Place, data: bytes, shown: Place) -> tuple[Place, bytes]:
        """The part of this data, which begins at a place, behind what was shown; and the place where it begins."""
        at, column = 0, place.column
        for _ in range(shown.lines - place.lines):
            if (end := data.find(b"\n", at)) < 0:
                return self._after(place, data), b""
            at, column = end + 1, 0
        if place.lines <= shown.lines and column < shown.column:
            end = data.find(b"\n", at) if self._by_lines else -1  # this worker's line may be shorter
            at += min(shown.column - column, (len(data) if end < 0 else end) - at)
        return self._after(place, data[:at]), data[at:]


def sees_slices(run: RunSettings) -> bool:
    """Whether the workers of this run print numbers of their own slices."""
    return any(mod.partition("=")[0] == "view" for mod in run.mods)
