"""Exchanges Python values between the workers of a host through shared memory: one write per worker, reads in place.

A worker's segment is an unnamed memory file that its peers open through /proc, so that a crashed worker leaves no file
behind. A segment has two halves, used in turn. A worker that writes its next value cannot overwrite a value that a peer
still reads, because the exchange of addresses between two values waits for all workers.

Values are pickled, because a batch may hold any type. Unpickling is safe here only because the address of a segment
arrives through memory that only the workers of the run can reach (memory/handover.py), never over a socket.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from typing import Any

import torch

from paceline.comm.group import Group
from paceline.comm.memory.flats import as_bytes
from paceline.comm.memory.region import Region
from paceline.comm.memory.shm_rendezvous import Meeting
from paceline.comm.sparse import as_it_is

ALIGN = 64
START = 1 << 20  # bytes: initial size of a half
ROW = struct.Struct("<qqqqqq")  # process id, descriptor, bytes of a half, offset of the value, its part count, flag
LENGTH = struct.Struct("<q")


class Segments:
    """Exchanges any picklable value between all workers, which must be on one host."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._half, self._turn = 0, 0
        self._fd, self._memory = -1, mmap.mmap(-1, 1)
        self._outgrown = -1
        self._peers: dict[int, tuple[tuple[int, ...], mmap.mmap]] = {}
        self._meeting: Meeting | None = None

    def exchange(self, value: Any, flag: int, what: str) -> tuple[list[Any], list[int]]:
        """Every worker's value and flag, in rank order. Large arrays and tensors in the values are views of shared
        memory, valid for one more exchange: copy any that must live longer."""
        buffers: list[pickle.PickleBuffer] = []
        head = io.BytesIO()
        _Pickler(head, protocol=5, buffer_callback=buffers.append).dump(value)
        raws = [head.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = b"".join(LENGTH.pack(len(raw)) for raw in raws)
        start = self._write([memoryview(sizes), *raws])
        rows = self._exchange_rows((os.getpid(), self._fd, self._half, start, len(raws), flag), what)
        if self._outgrown >= 0:  # all peers have mapped it before this exchange, and a mapping keeps the memory alive
            os.close(self._outgrown)
            self._outgrown = -1
        self._turn ^= 1
        return [self._read(rank, row) for rank, row in enumerate(rows)], [row[-1] for row in rows]

    def _exchange_rows(self, row: tuple[int, ...], what: str) -> list[tuple[int, ...]]:
        """Every worker's row. Rows that arrived over Gloo are not trusted: then the rows are read from shared
        memory."""
        rows = self.group.gather_vectors(torch.tensor(row, device="cpu"), what).tolist()
        if self.group.is_private:
            return [tuple(each) for each in rows]
        with self.group.waiting(what):
            if self._meeting is None:
                self._meeting = self.group.meet("segments", 2 * ALIGN * self.group.world)
            memory: Any = self._meeting.space.numpy()
            at = [ALIGN * (2 * rank + self._turn) for rank in range(self.group.world)]
            memory[at[self.group.rank] : at[self.group.rank] + ROW.size] = memoryview(ROW.pack(*row))
            self._meeting.meet(what)
            return [ROW.unpack(memory[start : start + ROW.size]) for start in at]

    def _write(self, raws: list[memoryview]) -> int:
        need = sum(_aligned(len(raw)) for raw in raws)
        if need > self._half:
            self._half = max(START, 1 << (need - 1).bit_length())
            self._outgrown, self._fd = self._fd, os.memfd_create("paceline")
            os.ftruncate(self._fd, 2 * self._half)
            self._memory = mmap.mmap(self._fd, 2 * self._half)
        at = start = self._turn * self._half
        for raw in raws:
            self._memory[at : at + len(raw)] = raw
            at += _aligned(len(raw))
        return start

    def _read(self, rank: int, row: tuple[int, ...]) -> Any:
        pid, fd, half, at, count, _ = row
        memory = memoryview(self._map(rank, pid, fd, half))
        parts = []
        head = count * LENGTH.size
        sizes = LENGTH.iter_unpack(memory[at : at + head])
        at += _aligned(head)
        for (size,) in sizes:
            parts.append(memory[at : at + size])
            at += _aligned(size)
        with as_it_is():  # a batch may hold sparse tensors
            return pickle.loads(parts[0], buffers=parts[1:])

    def _map(self, rank: int, pid: int, fd: int, half: int) -> mmap.mmap:
        if rank == self.group.rank:
            return self._memory
        known = self._peers.get(rank)
        if known is None or known[0] != (pid, fd, half):
            self._peers[rank] = ((pid, fd, half), Region.of(pid, fd, 2 * half).memory)
        return self._peers[rank][1]


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class _Pickler(pickle.Pickler):
    """Passes tensor memory as an out-of-band buffer, as numpy does for its arrays."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        memory: Any = as_bytes(value).numpy()
        return _tensor, (pickle.PickleBuffer(memory), value.dtype, tuple(value.shape))


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not len(memoryview(buffer)):
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(buffer, dtype=dtype).view(shape)
