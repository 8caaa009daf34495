"""Which worker speaks for the run: what it prints is what the run prints.

All workers print the same bytes. When the one that speaks is lost, the next one goes on at the byte where it stopped:
the launcher counts what was shown, and keeps what the others have printed beyond that. In a script that distributes
itself each worker prints what it wants: there the next one is shown from then on.
"""

from __future__ import annotations

from paceline.launch.events import Output


class Voice:
    """The output of all workers of an elastic run; of any other, rank 0's."""

    def __init__(self, *, alike: bool = True) -> None:
        """`alike`: all workers print the same."""
        self.rank, self._alike = 0, alike
        self._shown: dict[str, int] = {}  # bytes of each stream
        self._printed: dict[tuple[int, str], int] = {}  # … by each worker
        self._ahead: dict[tuple[int, str], bytes] = {}  # what a worker printed beyond what was shown

    def hear(self, output: Output) -> Output | None:
        """What to show of it, if anything."""
        if not self._alike:
            return output if output.rank == self.rank else None
        which, shown = (output.rank, output.stream), self._shown.get(output.stream, 0)
        self._printed[which] = printed = self._printed.get(which, 0) + len(output.data)
        beyond = max(printed - shown, 0)
        if output.rank != self.rank:
            kept = self._ahead.get(which, b"") + output.data
            self._ahead[which] = kept[len(kept) - beyond :] if beyond else b""
            return None
        new = output.data[-beyond:] if beyond else b""  # a worker that has just begun to speak may be behind
        self._shown[output.stream] = shown + len(new)
        return Output(output.rank, output.stream, new) if new else None

    def move(self, rank: int) -> list[Output]:
        """From now on this worker speaks. Returns what it has printed already and nobody has seen."""
        self.rank = rank
        missed = []
        for speaker, stream in [which for which in self._ahead if which[0] == rank]:
            beyond = self._printed[speaker, stream] - self._shown.get(stream, 0)
            kept = self._ahead.pop((speaker, stream))
            if beyond > 0:
                missed.append(Output(rank, stream, kept[len(kept) - beyond :]))  # type: ignore[arg-type]
                self._shown[stream] = self._shown.get(stream, 0) + beyond
        return missed
