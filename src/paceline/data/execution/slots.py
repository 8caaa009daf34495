"""Slots of shared memory, which carry batches between processes.

A batch is written directly into a slot, and its tensors are views of the slot. The slot is free again when the last of
these tensors is gone. If few slots are free, batches are copied out.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import mmap
import os
import pickle
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

ALIGN = 64
LEAST = 64 << 20  # bytes of a slot at least; only the used part takes memory
LONG = 1 << 10  # bytes from which on a byte string goes through the slot instead of the pipe


class Slot:
    """A piece of shared memory. Only the process that has the slot writes to it."""

    def __init__(self, size: int) -> None:
        self.descriptor = os.memfd_create("paceline-data")
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        self.size = size
        self.used = 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in this slot; an ordinary tensor if it does not fit."""
        count = math.prod(shape)
        begin = self.reserve(count * dtype.itemsize)
        if begin is None:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=begin).view(shape)

    def reserve(self, size: int) -> int | None:
        """The offset of `size` free bytes; None if they do not fit, or `size` is 0."""
        begin = -(-self.used // ALIGN) * ALIGN
        if not size or begin + size > self.size:
            return None
        self.used = begin + size
        return begin

    def close(self) -> None:
        os.close(self.descriptor)
        # The memory is unmapped when the last tensor in it is gone.


class SlotPool(list[Slot]):
    """Slots by number. `free` has the numbers of slots that can be written again; finalizers of tensors append to it,
    in any thread and at any time."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(Slot(max(LEAST, size)) for _ in range(count))
        self.free: deque[int] = deque()

    def lend(self, number: int, raw: bytes, *, copy: bool, pinned: Any = None) -> Any:
        """The value that was pickled into a slot. Its tensors are views of the slot, which is free when they are gone;
        with `copy`, or without tensors, the slot is free at once. `pinned` pins the part of the slot that has
        tensors."""
        held = Held(self[number])
        value = Unpickler(io.BytesIO(raw), held).load()
        if held.tensors and not copy:
            if pinned is not None:
                pinned.reach(number, held.end)
            weakref.finalize(held.base, self.free.append, number).atexit = False
        else:
            if held.tensors:
                value = Unpickler(io.BytesIO(raw), Copied(self[number])).load()
            self.free.append(number)
        held.tensors.clear()
        return value

    def close(self) -> None:
        for slot in self:
            slot.close()


class Pickler(pickle.Pickler):
    """Pickles tensors in the slot as offsets. Other tensors and long byte strings are copied into the slot, if they
    fit."""

    def __init__(self, file: io.BytesIO, slot: Slot) -> None:
        super().__init__(file, protocol=5)
        self._slot = slot
        self._begin = torch.frombuffer(slot.memory, dtype=torch.uint8, count=1).data_ptr()

    def persistent_id(self, value: Any) -> Any:
        if type(value) is bytes:
            return self._texts("text", [value]) if len(value) >= LONG else None
        if type(value) is list and value and all(type(item) is bytes for item in value):
            return self._texts("texts", value)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        if not value.is_contiguous() or not self._begin <= value.data_ptr() < self._begin + self._slot.size:
            target = self._slot.allocate(tuple(value.shape), value.dtype)
            if not self._begin <= target.data_ptr() < self._begin + self._slot.size:
                return None
            value = target.copy_(value.detach())
        return value.data_ptr() - self._begin, str(value.dtype).removeprefix("torch."), tuple(value.shape)

    def _texts(self, kind: str, texts: list[bytes]) -> Any:
        """Writes byte strings into the slot, one after the other."""
        sizes = list(map(len, texts))
        begin = self._slot.reserve(sum(sizes))
        if begin is None:
            return None
        self._slot.memory.seek(begin)
        for text in texts:
            self._slot.memory.write(text)
        return begin, kind, sizes


class Held:
    """Tensors as views of a slot."""

    def __init__(self, slot: Slot) -> None:
        self.memory = slot.memory
        self.base = np.frombuffer(slot.memory, np.uint8)
        self.tensors: list[torch.Tensor] = []
        self.end = 0  # of the part of the slot that has tensors

    def tensor(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        count = math.prod(shape)
        made = torch.frombuffer(self.base, dtype=dtype, count=count, offset=at).view(shape)
        self.tensors.append(made)
        self.end = max(self.end, at + made.nbytes)
        return made


class Copied(Held):
    """Tensors as copies, outside the slot."""

    def tensor(self, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return super().tensor(at, dtype, shape).clone()


class Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: Held) -> None:
        super().__init__(file)
        self._held = held

    def persistent_load(self, pid: Any) -> Any:
        at, kind, sizes = pid
        if kind in ("text", "texts"):
            memory, ends = self._held.memory, itertools.accumulate(sizes, initial=at)
            texts = [memory[begin:end] for begin, end in itertools.pairwise(ends)]
            return texts if kind == "texts" else texts[0]
        return self._held.tensor(at, getattr(torch, kind), sizes)


# -- pinned slots -----------------------------------------------------------------------------------------------------


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
