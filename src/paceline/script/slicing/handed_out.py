"""The part of a training batch that this worker's script holds, in the slice view.

In an elastic run each worker loads whole batches and cuts its slice, so from one batch to the next the rows can be
dealt out among other workers. A worker that is lost with its slice of a batch, before that slice's gradient was summed,
takes it along: losses and gradients of that step are means over the rows of those who are left.
"""

from __future__ import annotations

from paceline.comm.group import Group
from paceline.script.rows.crossings import Split
from paceline.units import count


class HandedOut:
    """The current batch. Every worker gets the same batches, in the same order."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.split: Split | None = None  # None: the script holds the whole batch
        self._ranks: list[int] = []  # of those among whom it is split: names in messages
        self._counts = False  # the gradients of all slices have been summed once
        if group.members is not None:
            group.follow(self._do_without)

    def hold(self, split: Split | None) -> None:
        """A loader hands out a batch."""
        self.split, self._counts = split, False
        self._ranks = [] if self._group.members is None else self._group.members.ranks

    def count(self) -> None:
        """A backward has ended on all workers."""
        self._counts = True

    def _do_without(self) -> None:
        """Workers are lost."""
        if self.split is None or self._group.members is None:
            return
        held, left = dict(zip(self._ranks, self.split.sizes, strict=True)), self._group.members.ranks
        sizes = [held[rank] for rank in left]
        # If all rows are lost, each of the others still holds a borrowed one.
        self.split = Split(self._group, tuple(sizes if any(sizes) else [1] * len(sizes)))
        self._ranks = left
        for rank in [rank for rank in held if rank not in left and held[rank] and not self._counts]:
            self._group.pulse.notice(
                f"Worker {rank} is lost with its slice of step {self._group.pulse.step + 1} (slice view): "
                f"{held[rank]} of {count(sum(held.values()), 'sample')}. Loss and gradients of this step are those of "
                "the other samples."
            )
