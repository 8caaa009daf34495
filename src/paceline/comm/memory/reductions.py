"""Sums of memory that the workers share: gradient buckets are added up where they lie.

A worker says that a bucket of its own is complete, and goes on. Once all have said so, each adds up its own part of it
and writes the sum into everybody's bucket: two reads and two writes for each number, no copy in or out, and no thread.
That is done when this worker next looks (`progress`), at the latest when it needs the sum (`finish`).

Buckets are made and started in the same order by every worker. Where a bucket's memory lies is each worker's own
affair: the others learn it with every start.
"""

from __future__ import annotations

import itertools
import struct
import time
import weakref
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.comm.call_site import script_line
from paceline.comm.link.client import within
from paceline.comm.memory.region import Region
from paceline.comm.memory.shm_rendezvous import LINE, Meeting

CHUNK = 256 << 10  # bytes that are added and passed on while they are in the cache
OPEN = 64  # sums that may be under way at once
START = struct.Struct("<qqqqqq")  # bucket, process, descriptor, number of the memory, elements, dtype
HALVES = (torch.float16, torch.bfloat16)

_serials = itertools.count(1)


class Shared:
    """A flat tensor of this worker's that the others can read and write."""

    def __init__(self, key: int, numel: int, dtype: torch.dtype) -> None:
        self.key, self.numel, self.dtype = key, numel, dtype
        self.kind = zlib.crc32(str(dtype).encode())
        self.renew()

    @torch.inference_mode(False)
    def renew(self) -> None:
        """Takes new memory, zeros; the old one is left to whoever holds it."""
        self.serial = next(_serials)
        self.region = Region(self.numel * self.dtype.itemsize)
        self.flat = self.region.bytes[: self.numel * self.dtype.itemsize].view(self.dtype)

    def start(self) -> bytes:
        return START.pack(self.key, *self.region.place, self.serial, self.numel, self.kind)


@dataclass(eq=False, slots=True)
class Sum:
    """One that has been started. `name` says what is summed, for whoever asks."""

    number: int
    bucket: Shared
    name: str
    flat: torch.Tensor  # the bucket's memory when it was started
    region: Region
    heard: set[int] = field(default_factory=set)
    reduced: bool = False
    adding: tuple[float, float] = (0.0, 0.0)  # when this worker added up its part


class Reductions:
    """The sums of one group of workers."""

    def __init__(self, store: Any, rank: int, world: int, **options: Any) -> None:
        """Every worker makes one, with a store of their own to meet in."""
        self.rank, self.world = rank, world
        self._ready = Meeting(within(store, "ready"), rank, world, world * OPEN * LINE, **options)
        self._done = Meeting(within(store, "done"), rank, world, 0, **options)
        memory: Any = self._ready.space.numpy()
        self._starts = memoryview(memory)
        self._open: deque[Sum] = deque()  # started, not yet added up here
        self._kept: deque[Sum] = deque()  # added up here; others may not have opened the memory yet
        self._count, self._keys = itertools.count(), itertools.count()
        self._done_by = [0] * world  # how many sums each has added its part of
        # Of the peers: their memory's number and the memory, by bucket and worker. Goes with the bucket.
        self._maps: weakref.WeakKeyDictionary[Shared, dict[int, tuple[int, torch.Tensor]]] = weakref.WeakKeyDictionary()

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared:
        """A bucket, of zeros. All workers make the same ones in the same order, at any time of their own."""
        return Shared(next(self._keys), numel, dtype)

    def start(self, bucket: Shared, name: str = "gradients") -> Sum:
        """This worker's bucket is complete. Does not wait, unless very many are under way."""
        if len(self._open) >= OPEN // 2:
            self._add_up(wait=True)
        begun = Sum(next(self._count), bucket, name, bucket.flat, bucket.region)
        at = self._at(self.rank, begun.number)
        self._starts[at : at + START.size] = bucket.start()
        self._ready.signal()
        self._open.append(begun)
        return begun

    def progress(self) -> None:
        """Adds up what all have started by now. Does not wait."""
        while self._open and self._add_up(wait=False):
            pass

    def finish(self, begun: Sum) -> None:
        """Waits for a sum: then every worker's bucket holds it."""
        self._ready.said = self._done.said = begun.name
        while not begun.reduced:
            self._add_up(wait=True)
        for peer in range(self.world):
            while peer != self.rank and self._done_by[peer] <= begun.number:
                self._done.wait(peer)
                self._done_by[peer] += 1
        while self._kept and self._kept[0].number <= begun.number:
            self._kept.popleft()

    def _add_up(self, *, wait: bool) -> bool:
        """This worker's part of the oldest sum; False if a peer has not started it."""
        oldest = self._open[0]
        for peer in range(self.world):
            if peer == self.rank or peer in oldest.heard:
                continue
            if wait:
                self._ready.wait(peer)
            elif not self._ready.is_here(peer):
                return False
            oldest.heard.add(peer)
        flats = [self._flat_of(peer, oldest) for peer in range(self.world)]
        self._kept.append(self._open.popleft())
        bounds = [oldest.bucket.numel * rank // self.world for rank in (self.rank, self.rank + 1)]
        began = time.perf_counter()
        _sum_into_all(flats, self.rank, *bounds)
        oldest.adding = began, time.perf_counter()
        oldest.reduced = True
        self._done.signal()
        return True

    def _flat_of(self, peer: int, begun: Sum) -> torch.Tensor:
        if peer == self.rank:
            return begun.flat
        at = self._at(peer, begun.number)
        key, process, descriptor, serial, numel, kind = START.unpack(self._starts[at : at + START.size])
        bucket = begun.bucket
        if (key, numel, kind) != (bucket.key, bucket.numel, bucket.kind):
            dtype = str(bucket.dtype).removeprefix("torch.")
            self._done.part(
                f"{begun.name}: bucket {bucket.key} of {bucket.numel} {dtype}, sum {begun.number}, at {script_line()}"
            )
        maps = self._maps.setdefault(bucket, {})
        if peer not in maps or maps[peer][0] != serial:
            size = numel * bucket.dtype.itemsize
            with torch.inference_mode(False):
                maps[peer] = serial, Region.of(process, descriptor, size).bytes[:size].view(bucket.dtype)
        return maps[peer][1]

    def _at(self, rank: int, number: int) -> int:
        return LINE * (rank * OPEN + number % OPEN)


@torch.no_grad()
def _sum_into_all(flats: list[torch.Tensor], rank: int, start: int, stop: int) -> None:
    """Adds up a stretch of everybody's memory, and writes the sum to all of them. Half types are added in float32."""
    own, others = flats[rank], [flat for r, flat in enumerate(flats) if r != rank]
    step = CHUNK // own.element_size()
    for at in range(start, stop, step):
        here = slice(at, min(at + step, stop))
        total = own[here]
        if own.dtype in HALVES:
            total = total.float()
        for other in others:
            total.add_(other[here])
        if own.dtype in HALVES:
            own[here] = total
        for other in others:
            other[here].copy_(total)
