"""Pinning: slots of shared memory that a GPU fetches batches from by itself, while the script's thread goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from paceline.data.execution.slots import Slot

PORTABLE = 1  # cudaHostRegisterPortable: for all devices
STEP = 1 << 20  # bytes: slots are pinned by so many, as batches that differ a little would else be pinned anew


class Pinned:
    """As much of each slot as batches take. Whoever copies from there without waiting for the copy keeps the tensors
    that it copies until then: a slot is filled again when they are gone."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._begins = [torch.frombuffer(slot.memory, dtype=torch.uint8, count=1).data_ptr() for slot in slots]
        self._sizes = [slot.size for slot in slots]
        self._pinned = [0] * len(slots)
        self._can = True

    def reach(self, number: int, end: int) -> None:
        """A batch takes this slot up to `end`. Called before anything is copied from it. Where memory cannot be pinned,
        which is where a system allows it to nobody, it stays as it is."""
        if end <= self._pinned[number] or not self._can:
            return
        self._unpin(number)
        size = min(-(-end // STEP) * STEP, self._sizes[number])
        if int(torch.cuda.cudart().cudaHostRegister(self._begins[number], size, PORTABLE)):
            self._can = False
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")  # the driver tells its last error once more: not to the script
            return
        self._pinned[number] = size

    def release(self) -> None:
        """Waits for copies that are under way."""
        with contextlib.suppress(RuntimeError):  # in a forked process, where there is nothing to release
            if any(self._pinned):
                torch.cuda.synchronize()
            for number in range(len(self._pinned)):
                self._unpin(number)

    def _unpin(self, number: int) -> None:
        if self._pinned[number]:
            torch.cuda.cudart().cudaHostUnregister(self._begins[number])
            self._pinned[number] = 0
