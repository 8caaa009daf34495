"""The file to which a server writes its shard: a header in msgpack, raw numbers, and a checksum. Never a pickle.

A file is written under a temporary name and renamed: there is always a whole one. A damaged file is refused by name.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from paceline.errors import RecordError
from paceline.strategies.server.optimizers import OptimizerSpec
from paceline.strategies.server.partition import Share, TensorSpec
from paceline.strategies.server.shard import Shard

MAGIC = b"paceline shard 1\n"
HEAD, TAIL = struct.Struct("<Q"), struct.Struct("<I")
ALIGNMENT = 64


class TensorEntry(msgspec.Struct, frozen=True):
    """Raw numbers of one tensor of an optimizer's state."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes, from the end of the header


class SpaceEntry(msgspec.Struct, frozen=True):
    """One optimizer's shard."""

    space: int
    tensors: tuple[TensorSpec, ...]
    share: Share
    optimizer: OptimizerSpec
    version: int
    applied: dict[int, int]  # worker → sequence number of its last push
    clocks: dict[int, int]  # worker → steps
    offset: int  # of the parameters
    state: tuple[dict[str, Any], ...]
    state_tensors: tuple[TensorEntry, ...]


class Contents(msgspec.Struct, frozen=True):
    """The header: what a server knows besides numbers."""

    server: int
    updates: int  # of all spaces together
    staleness: dict[int, int]  # histogram
    spaces: tuple[SpaceEntry, ...]


class Draft:
    """Collects shards for a file. Holds views of the shards' memory: written by a fork, they are one moment's."""

    def __init__(self) -> None:
        self.spaces: list[SpaceEntry] = []
        self._buffers: list[memoryview] = []
        self._size = 0

    def add(self, space: int, shard: Shard, applied: dict[int, int], clocks: dict[int, int]) -> None:
        offset = self._place(shard.memory)
        state, tensors = shard.state()
        entries = tuple(
            TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), self._place(tensor))
            for tensor in tensors
        )
        self.spaces.append(
            SpaceEntry(
                *(space, shard.tensors, shard.share, shard.spec, shard.version, dict(applied), dict(clocks)),
                *(offset, tuple(state), entries),
            )
        )

    def write(self, path: Path, contents: Contents) -> None:
        """Writes the file and renames it into place. Raises OSError; the previous file is then still there."""
        header = msgspec.msgpack.encode(contents)
        fresh = path.with_name(f".{path.name}.new")
        check = 0
        parts: list[bytes | memoryview] = [MAGIC, HEAD.pack(len(header)), header, *self._buffers]
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", 0) as file:
            for part in parts:
                check = zlib.crc32(part, check)
                _write(file.fileno(), part)
            _write(file.fileno(), TAIL.pack(check))
            os.fsync(file.fileno())
        os.replace(fresh, path)

    def _place(self, tensor: torch.Tensor) -> int:
        data = raw(tensor)
        offset = self._size
        gap = -len(data) % ALIGNMENT
        self._buffers.append(data)
        if gap:
            self._buffers.append(memoryview(bytes(gap)))
        self._size += len(data) + gap
        return offset


def read(path: Path) -> tuple[Contents, list[Shard]]:
    """The file's header and its shards. Raises RecordError, with the file's name, if it is damaged."""
    data = path.read_bytes()
    least = len(MAGIC) + HEAD.size + TAIL.size
    if len(data) < least or not data.startswith(MAGIC):
        raise _damaged(path, "it is not a server's shard")
    if zlib.crc32(memoryview(data)[: -TAIL.size]) != TAIL.unpack_from(data, len(data) - TAIL.size)[0]:
        raise _damaged(path, "its checksum is wrong")
    (length,) = HEAD.unpack_from(data, len(MAGIC))
    begin = len(MAGIC) + HEAD.size
    try:
        contents = msgspec.msgpack.decode(data[begin : begin + length], type=Contents)
        numbers = memoryview(data)[begin + length : -TAIL.size]
        return contents, [_shard(entry, numbers) for entry in contents.spaces]
    except (msgspec.DecodeError, ValueError, IndexError, KeyError) as error:
        raise _damaged(path, str(error)) from error


def raw(tensor: torch.Tensor) -> memoryview:
    """A contiguous tensor's memory as bytes, without a copy."""
    if not tensor.numel():
        return memoryview(b"")
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array).cast("B")


def from_raw(data: memoryview, dtype: str, shape: Sequence[int], offset: int = 0) -> torch.Tensor:
    """A tensor of its own with these bytes."""
    kind = TensorSpec("", dtype, tuple(shape))
    made = torch.empty(kind.bytes, dtype=torch.uint8, device="cpu")
    raw(made)[:] = data[offset : offset + kind.bytes]
    return made.view(kind.torch_dtype).view(kind.shape)


def _shard(entry: SpaceEntry, numbers: memoryview) -> Shard:
    shard = Shard(entry.tensors, entry.share, entry.optimizer)
    size = shard.memory.numel()
    if size:
        raw(shard.memory)[:] = numbers[entry.offset : entry.offset + size]
    tensors = [from_raw(numbers, each.dtype, each.shape, each.offset) for each in entry.state_tensors]
    shard.set_state(entry.state, tensors, entry.clocks)
    shard.version = entry.version
    return shard


def _write(descriptor: int, data: memoryview | bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _damaged(path: Path, why: str) -> RecordError:
    return RecordError(
        f"The file {path} of a parameter server cannot be read: {why}.",
        advice="Delete the file: the server then goes on from a worker's copy, without the optimizer's state.",
    )
