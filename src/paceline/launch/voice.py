"""Which worker speaks for the run: what it prints is what the run prints.

All workers print the same bytes. When the one that speaks is lost, the next one goes on at the byte where it stopped:
the launcher counts what was shown, and keeps what the others have printed beyond that.
"""

from __future__ import annotations

from paceline.launch.events import Output


class Voice:
    """The output of all workers of an elastic run; of any other, rank 0's."""

    def __init__(self) -> None:
        self.rank = 0
        self._shown: dict[str, int] = {}  # bytes of each stream
        self._ahead: dict[tuple[int, str], bytearray] = {}  # what others printed, from the byte in `_from` on
        self._from: dict[tuple[int, str], int] = {}

    def hear(self, output: Output) -> Output | None:
        """What to show of it, if anything."""
        if output.rank == self.rank:
            self._shown[output.stream] = self._shown.get(output.stream, 0) + len(output.data)
            return output
        kept = self._ahead.setdefault((output.rank, output.stream), bytearray())
        kept += output.data
        self._drop_shown(output.rank, output.stream)
        return None

    def move(self, rank: int) -> list[Output]:
        """From now on this worker speaks. Returns what it has printed already and nobody has seen."""
        self.rank = rank
        missed = []
        for (speaker, stream), kept in self._ahead.items():
            if speaker == rank:
                self._drop_shown(speaker, stream)
                if kept:
                    missed.append(Output(rank, stream, bytes(kept)))  # type: ignore[arg-type]
                    self._shown[stream] = self._shown.get(stream, 0) + len(kept)
                    kept.clear()
        return missed

    def _drop_shown(self, rank: int, stream: str) -> None:
        kept, began = self._ahead[rank, stream], self._from.get((rank, stream), 0)
        seen = min(max(self._shown.get(stream, 0) - began, 0), len(kept))
        del kept[:seen]
        self._from[rank, stream] = began + seen
