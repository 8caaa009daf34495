"""Splits the parameters of one optimizer over servers, so that every server holds the same number of bytes.

All tensors lie in one flat memory, in which every server owns one contiguous range. A worker keeps its parameters in
memory of the same layout, so a pull is one copy per server. An optimizer that works element by element lets a tensor be
cut between two servers; an optimizer that needs whole tensors (LARS, Muon) keeps tensors whole, and then the largest
tensor limits the balance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from paceline import units

ALIGNMENT = 64  # bytes: where a tensor begins, for vector instructions
NEAR = 0.01  # of a fair share: a tensor is not cut this close to its end
GRAIN = 16  # elements: a cut is at a multiple


class TensorSpec(msgspec.Struct, frozen=True):
    """One parameter."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorSpec:
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{self.dtype!r} is no torch.dtype")
        return dtype

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.torch_dtype.itemsize


class Piece(msgspec.Struct, frozen=True):
    """A range of elements of one tensor, and where it begins in the flat memory (in bytes)."""

    tensor: int
    start: int
    stop: int
    offset: int


class Share(msgspec.Struct, frozen=True):
    """What one server holds: `pieces` fill the bytes `begin` to `end` of the flat memory, but for gaps of alignment."""

    server: int
    begin: int
    end: int
    pieces: tuple[Piece, ...]


class Partition(msgspec.Struct, frozen=True):
    """The flat memory of all tensors (`size` bytes), where each tensor begins in it, and the servers' shares."""

    size: int
    offsets: tuple[int, ...]
    shares: tuple[Share, ...]


def split(tensors: Sequence[TensorSpec], servers: int, *, whole: bool = False) -> Partition:
    """Divides the tensors over servers by bytes; with `whole`, no tensor is cut."""
    order = _packed(tensors, servers) if whole else [(number, -1) for number in range(len(tensors))]
    offsets, end = [0] * len(tensors), 0
    for number, _ in order:
        offsets[number] = end = -(-end // ALIGNMENT) * ALIGNMENT
        end += tensors[number].bytes
    pieces: list[list[Piece]] = [[] for _ in range(servers)]
    if whole:
        for number, server in order:
            pieces[server].append(Piece(number, 0, tensors[number].elements, offsets[number]))
    else:
        _cut(tensors, offsets, pieces)
    shares = []
    for server, held in enumerate(pieces):
        begin = held[0].offset if held else 0
        last = held[-1] if held else None
        stop = last.offset + (last.stop - last.start) * tensors[last.tensor].torch_dtype.itemsize if last else 0
        shares.append(Share(server, begin, stop, tuple(held)))
    return Partition(end, tuple(offsets), tuple(shares))


def balance(tensors: Sequence[TensorSpec], partition: Partition) -> list[int]:
    """The bytes of parameters on each server."""
    return [
        sum((piece.stop - piece.start) * tensors[piece.tensor].torch_dtype.itemsize for piece in share.pieces)
        for share in partition.shares
    ]


def describe(tensors: Sequence[TensorSpec], partition: Partition) -> str:
    """The balance in words: "server 0: 12.3 MiB, 21 tensors (1 cut); server 1: …"."""
    told = []
    for share, size in zip(partition.shares, balance(tensors, partition), strict=True):
        cut = sum(piece.stop - piece.start < tensors[piece.tensor].elements for piece in share.pieces)
        count = len(share.pieces)
        note = f" ({cut} cut)" if cut else ""
        told.append(f"server {share.server}: {units.size(size)}, {units.count(count, 'tensor')}{note}")
    return "; ".join(told)


def _cut(tensors: Sequence[TensorSpec], offsets: Sequence[int], pieces: list[list[Piece]]) -> None:
    """Deals the tensors out in their order. A tensor is cut where a server has its fair share."""
    servers, total = len(pieces), sum(tensor.bytes for tensor in tensors)
    near = NEAR * total / servers
    server, dealt = 0, 0  # dealt: bytes so far
    for number, tensor in enumerate(tensors):
        item, start = tensor.torch_dtype.itemsize, 0
        while True:
            until = total * (server + 1) / servers
            rest = (tensor.elements - start) * item
            last = server == servers - 1
            if last or dealt + rest <= until + near:
                if tensor.elements > start or not tensor.elements:
                    pieces[server].append(Piece(number, start, tensor.elements, offsets[number] + start * item))
                dealt += rest
                if not last and dealt >= until - near:
                    server += 1
                break
            count = round((until - dealt) / item / GRAIN) * GRAIN
            count = min(count, tensor.elements - start)
            if count > 0:
                pieces[server].append(Piece(number, start, start + count, offsets[number] + start * item))
                start, dealt = start + count, dealt + count * item
            server += 1


def _packed(tensors: Sequence[TensorSpec], servers: int) -> list[tuple[int, int]]:
    """Whole tensors, largest first, each for the server that holds least: (tensor, server), ordered by server."""
    held = [0] * servers
    placed = []
    for number in sorted(range(len(tensors)), key=lambda number: (-tensors[number].bytes, number)):
        server = min(range(servers), key=lambda server: (held[server], server))
        held[server] += tensors[number].bytes
        placed.append((number, server))
    return sorted(placed, key=lambda place: (place[1], place[0]))
