"""In-place sums of gradient buckets in shared memory.

A worker announces that its bucket is complete, and goes on. Once all workers have announced a bucket, each worker sums
its own part of the bucket and writes the sum into the buckets of all workers. Each element costs two reads and two
writes; no data is copied in or out, and no thread is needed. The addition runs at this worker's next `progress` call,
or in `finish`.

Every worker allocates and starts the buckets in the same order. Each start carries the current memory of the bucket, so
that a worker may replace this memory at any time.
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
from paceline.comm.memory.region import Region
from paceline.comm.memory.shm_rendezvous import LINE, Meeting
from paceline.wire.link import within

CHUNK = 256 << 10  # bytes that are summed and written to all workers while they are in the cache
OPEN = 64  # ring buffer entries for started sums; at most half of them are in use
START = struct.Struct("<qqqqqq")  # bucket, process id, descriptor, serial number of the memory, elements, CRC of dtype
HALVES = (torch.float16, torch.bfloat16)

_serials = itertools.count(1)


class Shared:
    """A flat tensor of this worker that its peers can read and write."""

    def __init__(self, key: int, numel: int, dtype: torch.dtype) -> None:
        self.key, self.numel, self.dtype = key, numel, dtype
        self.kind = zlib.crc32(str(dtype).encode())
        self.renew()

    @torch.inference_mode(False)
    def renew(self) -> None:
        """Replaces the memory by new, zeroed memory. The old memory lives as long as a reference to it."""
        self.serial = next(_serials)
        self.region = Region(self.numel * self.dtype.itemsize)
        self.flat = self.region.bytes[: self.numel * self.dtype.itemsize].view(self.dtype)

    def start(self) -> bytes:
        return START.pack(self.key, *self.region.place, self.serial, self.numel, self.kind)


@dataclass(eq=False, slots=True)
class Sum:
    """A started sum. `name` describes the bucket in messages."""

    number: int
    bucket: Shared
    name: str
    flat: torch.Tensor  # the bucket's memory at the start of the sum
    region: Region
    heard: set[int] = field(default_factory=set)  # peers that have started this sum
    reduced: bool = False
    adding: tuple[float, float] = (0.0, 0.0)  # start and end time of this worker's additions


class Reductions:
    """The sums of one group of workers."""

    def __init__(self, store: Any, rank: int, world: int, **options: Any) -> None:
        """Every worker of the group calls it, with a store prefix for the exclusive use of this group; waits for
        all."""
        self.rank, self.world = rank, world
        self._ready = Meeting(within(store, "ready"), rank, world, world * OPEN * LINE, **options)
        self._done = Meeting(within(store, "done"), rank, world, 0, **options)
        memory: Any = self._ready.space.numpy()
        self._starts = memoryview(memory)
        self._open: deque[Sum] = deque()  # started, own part not yet added
        self._kept: deque[Sum] = deque()  # own part added; kept alive because peers may not have opened the memory yet
        self._count, self._keys = itertools.count(), itertools.count()
        self._done_by = [0] * world  # by rank: number of sums to which that worker has added its part
        # Per bucket and peer: serial number and mapping of the peer's memory. Freed with the bucket.
        self._maps: weakref.WeakKeyDictionary[Shared, dict[int, tuple[int, torch.Tensor]]] = weakref.WeakKeyDictionary()

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared:
        """A zeroed bucket. All workers allocate the same buckets in the same order; no worker waits."""
        return Shared(next(self._keys), numel, dtype)

    def start(self, bucket: Shared, name: str = "gradients") -> Sum:
        """Announces that this worker's bucket is complete. Does not wait, unless 32 sums (half of `OPEN`) are still
        open."""
        if len(self._open) >= OPEN // 2:
            self._add_up(wait=True)
        begun = Sum(next(self._count), bucket, name, bucket.flat, bucket.region)
        at = self._at(self.rank, begun.number)
        self._starts[at : at + START.size] = bucket.start()
        self._ready.signal()
        self._open.append(begun)
        return begun

    def progress(self) -> None:
        """Adds this worker's part to all sums that every worker has started. Does not wait."""
        while self._open and self._add_up(wait=False):
            pass

    def finish(self, begun: Sum) -> None:
        """Waits for a sum. Afterwards the bucket of every worker holds the sum."""
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
        """Adds this worker's part of the oldest open sum; False if a peer has not started that sum."""
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
    """Sums the range [start, stop) of all buckets and writes the sum to all of them. float16 and bfloat16 are summed in
    float32."""
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
