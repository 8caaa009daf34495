"""Pins slots of shared memory, so that a GPU copies batches from them while the script's thread continues."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from paceline.data.execution.slots import Slot

PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices
STEP = 1 << 20  # bytes: pinned sizes are multiples of this, so that slightly larger batches need no new pinning


class Pinned:
    """Pins the part of each slot that batches use. A caller that copies asynchronously must keep the tensors until the
    copy is done, because a slot is filled again when its tensors are gone."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._begins = [torch.frombuffer(slot.memory, dtype=torch.uint8, count=1).data_ptr() for slot in slots]
        self._sizes = [slot.size for slot in slots]
        self._pinned = [0] * len(slots)
        self._can = True

    def reach(self, number: int, end: int) -> None:
        """Pins slot `number` up to `end`. Called before a batch is copied from the slot. If the system does not allow
        pinning, the slot stays unpinned."""
        if end <= self._pinned[number] or not self._can:
            return
        self._unpin(number)
        size = min(-(-end // STEP) * STEP, self._sizes[number])
        if int(torch.cuda.cudart().cudaHostRegister(self._begins[number], size, PORTABLE)):
            self._can = False
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")  # the driver reports its last error once more: clear it for the script
            return
        self._pinned[number] = size

    def release(self) -> None:
        """Unpins all slots. Waits for running copies."""
        with contextlib.suppress(RuntimeError):  # raised in a forked process, which has nothing to release
            if any(self._pinned):
                torch.cuda.synchronize()
            for number in range(len(self._pinned)):
                self._unpin(number)

    def _unpin(self, number: int) -> None:
        if self._pinned[number]:
            torch.cuda.cudart().cudaHostUnregister(self._begins[number])
            self._pinned[number] = 0
