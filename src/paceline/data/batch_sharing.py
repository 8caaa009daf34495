"""Batch sharing: under `paceline run`, each worker makes only its own rows of a batch.

Every worker runs the same loop. In the slice view a worker needs only its own rows. In the batch view it needs the
whole batch: if making a batch costs more than a transfer, each worker of a host makes its own rows, and the rows are
combined through shared memory. Order, random numbers and batches are the same either way. In the first loop every
worker makes whole batches and measures their cost; at the beginning of the second loop the workers agree whether to
share.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any, Literal

import torch

from paceline.comm.memory.region import host_of_this_process
from paceline.comm.shm_exchange import Segments
from paceline.data.execution.parallel_map import Jobs, Rows
from paceline.data.planning.stages import grows
from paceline.errors import DataError, UsageError
from paceline.script import tree
from paceline.script.rows.crossings import Split
from paceline.script.seams.api import current, in_own_process
from paceline.script.seams.loading import join

PASSING = 0.5e-3  # seconds to combine the rows of a batch, apart from the transfer
SPEED = 1e9  # bytes a second of the transfer
TIMES = 2.0  # ratio of saved time to cost from which on sharing is worth it
FINE, FAILED = 0, 1

Use = Literal["", "slice", "share"]  # how a loop makes its batches: whole, own rows only, or own rows combined


class Parting:
    """Batch sharing of one pipeline, for all its loops. All workers call the methods in the same order."""

    def __init__(self) -> None:
        self._agreed: bool | None = None
        self._joins: bool | None = None  # whether rows of a batch can be combined; None: no batch was seen yet
        self._segments: Segments | None = None

    def begins(self, jobs: Jobs | None) -> Use:
        """A loop of the script over batches begins. `jobs`: the node that makes the batches, if it can make single
        rows. May wait for the other workers, to agree."""
        stage = current()
        assert stage is not None
        stage.has_loader = True
        # In an elastic run each worker makes whole batches: the rows of a lost one would be missing.
        if jobs is None or grows() > 1 or stage.group.members is not None:
            return ""
        if stage.views.wants_slices():
            return "slice" if stage.rows.world == stage.group.world else ""  # else the whole batch is made, and cut
        if not jobs.costly or self._joins is None:
            return ""
        if self._agreed is None:
            self._agreed = self._agree(stage.group, jobs)
        return "share" if self._agreed else ""

    def _agree(self, group: Any, jobs: Jobs) -> bool:
        host = zlib.crc32(host_of_this_process().encode())
        mine = [jobs.meter.each, max(0, jobs.meter.bytes), float(bool(self._joins)), host]
        costs = group.gather_vectors(torch.tensor(mine, dtype=torch.float64), "the cost of a batch")
        one_host = bool((costs[:, 3] == host).all())
        worth = is_worth_it(costs[:, 0].mean().item(), costs[:, 1].max().item(), group.world)
        return worth and one_host and bool(costs[:, 2].all())

    def hand_out(self, use: Use, following: Callable[[], Any]) -> Any:
        """The next batch as the script sees it. All workers get StopIteration at the same batch."""
        stage = current()
        assert stage is not None
        views = stage.views
        if use == "slice":
            rows = following()
            views.hand_out(Split.of(stage.rows, rows.size))
            return rows.value
        if use == "share":
            views.hand_out(None)
            return self._put_together(stage.group, following)
        batch = following()
        if self._joins is None:
            self._joins = can_join(batch)
        if grows() > 1:
            batch = self._grown(batch, following)
        if views.wants_slices():
            return self._cut(stage, batch)
        views.hand_out(None)
        return batch

    def _grown(self, batch: Any, following: Callable[[], Any]) -> Any:
        """Joins as many batches as there are workers; at the end of a loop, those that are left."""
        if not self._joins:
            raise UsageError(
                "--batch scale cannot join the batches of a pipeline: they have values other than tensors and strings.",
                advice="Convert the values to tensors in a map, or keep the script's batch: --batch keep",
            )
        batches = [batch]
        while len(batches) < grows():
            try:
                batches.append(following())
            except StopIteration:
                break
        return join(batches)

    def _put_together(self, group: Any, following: Callable[[], Rows]) -> Any:
        if self._segments is None:
            self._segments = Segments(group)
        size, flag, value = 0, FINE, None
        try:
            rows = following()
            size, value = rows.size, rows.value
        except DataError as error:  # in one worker's rows: all workers raise it, as if all had made the batch
            flag, value = FAILED, (error.message, error.advice)
        parts, flags = self._segments.exchange(value, flag, "the rows of a batch")
        if FAILED in flags:
            message, advice = parts[flags.index(FAILED)]
            raise DataError(message, advice=advice)
        sizes = Split.of(group, size).sizes
        return join([part for part, count in zip(parts, sizes, strict=True) if count])

    def _cut(self, stage: Any, batch: Any) -> Any:
        """This worker's rows of a batch that every worker made whole, in the slice view."""
        size = next((leaf.shape[0] for leaf in tree.leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
        split = Split.of(stage.rows, size)
        stage.views.hand_out(split)
        first, last = (split.start, split.start + split.mine) if split.mine else (0, 1)  # one borrowed row

        def own(leaf: Any) -> Any:
            is_whole = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size
            return leaf[first:last] if is_whole else leaf

        return tree.replace(batch, own)


def is_the_scripts_own() -> bool:
    """Whether all workers run the loop that begins here at the same time. Not in a thread, in a loader's process, or
    inside a DataLoader, which shares its batches itself."""
    if threading.current_thread() is not threading.main_thread() or not in_own_process():
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("torch.utils.data."):
            return False
        frame = frame.f_back
    return True


def is_worth_it(each: float, size: float, world: int) -> bool:
    """Whether sharing saves time, for batches that take `each` seconds to make and have `size` bytes."""
    return each * (1 - 1 / world) > TIMES * (PASSING + size / SPEED)


def can_join(batch: Any) -> bool:
    """Whether rows of such a batch can be joined: the batch has only CPU tensors and lists of strings."""
    if isinstance(batch, torch.Tensor):
        return bool(batch.dim()) and batch.device.type == "cpu" and batch.layout is torch.strided
    if isinstance(batch, dict):
        return bool(batch) and all(map(can_join, batch.values()))
    if isinstance(batch, (list, tuple)):
        texts = [isinstance(item, (str, bytes)) for item in batch]
        return bool(texts) and (all(texts) if any(texts) else all(map(can_join, batch)))
    return False
