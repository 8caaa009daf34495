"""A batch shared out: workers that run as one make only their own rows of it.

Under `paceline run -n N` every worker goes through the same loop. In the slice view a worker wants its own rows and
nothing else. In the batch view it wants the whole batch: where making one costs more than passing one on, each worker
of a host makes its rows, and they are put together through shared memory. The order, the random numbers of each sample
and the batches are the same either way. Whether it is worth it is measured in the first loop, in which everybody makes
everything, and agreed on at the beginning of the second.
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
from paceline.data.options import grows
from paceline.errors import DataError, UsageError
from paceline.script import tree
from paceline.script.loading import join
from paceline.script.seams.api import current, in_own_process
from paceline.script.slicing.crossings import Split

PASSING = 0.5e-3  # seconds that it takes to put a batch together, whatever its size
SPEED = 1e9  # bytes a second, there
TIMES = 2.0  # as much must be saved
FINE, FAILED = 0, 1

Use = Literal["", "slice", "share"]  # what becomes of the batches of a loop


class Parting:
    """Of one pipeline, for all its loops. Every worker calls everything here, in the same order."""

    def __init__(self) -> None:
        self._agreed: bool | None = None
        self._joins: bool | None = None  # whether parts of its batches can be put together; None: none was seen yet
        self._segments: Segments | None = None

    def begins(self, jobs: Jobs | None) -> Use:
        """A loop of the script's own begins, over batches. They come from this stage, where that is one that may make
        them in part. Waits for the other workers where they have to agree."""
        stage = current()
        assert stage is not None
        stage.has_loader = True
        if jobs is None or grows() > 1:
            return ""
        if stage.views.wants_slices():
            return "slice"
        if not jobs.costly or self._joins is None:
            return ""
        if self._agreed is None:
            self._agreed = self._agree(stage.group, jobs)
        return "share" if self._agreed else ""

    def _agree(self, group: Any, jobs: Jobs) -> bool:
        host = zlib.crc32(host_of_this_process().encode())
        mine = [jobs.meter.each, max(0, jobs.meter.bytes), float(bool(self._joins)), host]
        told = group.gather_vectors(torch.tensor(mine, dtype=torch.float64), "what a batch costs")
        one_host = bool((told[:, 3] == host).all())
        worth = is_worth_it(told[:, 0].mean().item(), told[:, 1].max().item(), group.world)
        return worth and one_host and bool(told[:, 2].all())

    def hand_out(self, use: Use, following: Callable[[], Any]) -> Any:
        """The next batch as the script is to see it. StopIteration comes to all workers at the same batch."""
        stage = current()
        assert stage is not None
        views = stage.views
        if use == "slice":
            rows = following()
            views.hand_out(Split.of(stage.group, rows.size))
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
        """As many batches as there are workers, as one; at a loop's end those that are left."""
        if not self._joins:
            raise UsageError(
                "Asked for --batch scale, but the batches of a pipeline hold more than tensors and texts: they cannot "
                "be put together.",
                advice="Make tensors of them in a map, or leave the batch as it is: --batch keep",
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
        except DataError as error:  # of one worker's rows: all are told, as if all had made them
            flag, value = FAILED, (error.message, error.advice)
        parts, flags = self._segments.exchange(value, flag, "the rows of a batch")
        if FAILED in flags:
            message, advice = parts[flags.index(FAILED)]
            raise DataError(message, advice=advice)
        sizes = Split.of(group, size).sizes
        return join([part for part, count in zip(parts, sizes, strict=True) if count])

    def _cut(self, stage: Any, batch: Any) -> Any:
        """A batch that every worker made whole, in the slice view."""
        size = next((leaf.shape[0] for leaf in tree.leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
        split = Split.of(stage.group, size)
        stage.views.hand_out(split)
        first, last = (split.start, split.start + split.mine) if split.mine else (0, 1)  # one borrowed row

        def own(leaf: Any) -> Any:
            is_whole = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size
            return leaf[first:last] if is_whole else leaf

        return tree.replace(batch, own)


def is_the_scripts_own() -> bool:
    """Whether the loop that begins here is one that all workers come to, at the same time: not one in a thread, in a
    loader's process, or inside a DataLoader, which shares out its batches itself."""
    if threading.current_thread() is not threading.main_thread() or not in_own_process():
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("torch.utils.data."):
            return False
        frame = frame.f_back
    return True


def is_worth_it(each: float, size: float, world: int) -> bool:
    """To make a part of what takes `each` seconds, and pass on what makes up a batch of so many bytes."""
    return each * (1 - 1 / world) > TIMES * (PASSING + size / SPEED)


def can_join(batch: Any) -> bool:
    """Whether parts of such a batch can be told to belong together: rows of tensors on the host, and lists of texts."""
    if isinstance(batch, torch.Tensor):
        return bool(batch.dim()) and batch.device.type == "cpu" and batch.layout is torch.strided
    if isinstance(batch, dict):
        return bool(batch) and all(map(can_join, batch.values()))
    if isinstance(batch, (list, tuple)):
        texts = [isinstance(item, (str, bytes)) for item in batch]
        return bool(texts) and (all(texts) if any(texts) else all(map(can_join, batch)))
    return False
