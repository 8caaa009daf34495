"""The safetensors format, written one tensor at a time and read by byte ranges.

A file is the length of its header (8 bytes, little endian), the header (JSON: each tensor's dtype, shape and byte range
in the data) and the data. The safetensors package writes a file from a dictionary of all its tensors; a checkpoint of
parts that are gathered one by one must not hold all of them in memory.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoint.manifest import Manifest, damaged
from paceline.checkpoint.verify import digest
from paceline.errors import CheckpointError

ALIGNMENT = 64  # of the data: readers map it into memory
LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors package
ENTRY_ROOM, DIM_ROOM = 110, 16  # bytes of a header entry at most, besides its name: sizes have up to 15 digits


def header_room(dims: dict[str, int]) -> int:
    """Bytes that the header of any file with some of these tensors needs at most. Given are names and numbers of
    dimensions; a part of a tensor may have fewer than the whole."""
    needed = sum(len(json.dumps(name)) + ENTRY_ROOM + max(dim + 1, 8) * DIM_ROOM for name, dim in dims.items()) + 2
    return _aligned(8 + needed) - 8


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class SafetensorsWriter:
    """Writes one new file. Tensors come in the order of falling item size, so that each one is aligned."""

    def __init__(self, path: Path, room: int) -> None:
        self.path, self._room = path, room
        self._header: dict[str, Any] = {}
        self.size = 0  # of the data so far
        self._file = open(path, "xb")  # noqa: SIM115 - closed by `close` or `abandon`
        self._file.seek(8 + room)  # the header is written last, when all sizes are known

    def add(self, name: str, dtype: str, shape: Sequence[int], data: Any) -> None:
        """Appends a tensor. `dtype` is its safetensors name, `data` its bytes."""
        length = memoryview(data).nbytes
        if length:
            self._file.write(data)
        self._header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.size, self.size + length]}
        self.size += length

    def close(self) -> None:
        """Writes the header, and returns when the file is on the disk."""
        text = json.dumps(self._header, separators=(",", ":")).encode()
        assert len(text) <= self._room
        self._file.truncate(8 + self._room + self.size)  # also if all tensors are empty
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + text.ljust(self._room))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes a file that nobody will read."""
        self._file.close()


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header's entries, and where the data begins. Checks that every byte range lies in the file."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise _not_one(path)
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            ends = [entry["data_offsets"] for entry in header.values()]
        except (ValueError, AttributeError, KeyError, TypeError):
            raise _not_one(path) from None
    begin = 8 + length
    if any(not 0 <= start <= stop <= size - begin for start, stop in ends):
        raise _not_one(path)
    return header, begin


def _not_one(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a complete safetensors file.", advice="Load another checkpoint: this one is damaged."
    )


# -- the files that one worker writes ---------------------------------------------------------------------------------


FULL = 1 << 30  # bytes after which a new file begins


class Shards:
    """Files `rankR-00001.safetensors`, … of a folder. Add tensors in the order of `in_order`."""

    def __init__(self, folder: Path, rank: int, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._folder, self._rank = folder, rank
        self._room = header_room({name: tensor.dim() for name, tensor in tensors})
        self._file: SafetensorsWriter | None = None
        self.written: list[dict[str, Any]] = []  # files, as in checkpoint.json
        self.tensors: dict[str, dict[str, Any]] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a whole tensor. Waits for its device."""
        if self._file is None:
            path = self._folder / f"rank{self._rank}-{len(self.written) + 1:05}.safetensors"
            self._file = SafetensorsWriter(path, self._room)
        dtype, shape, raw = stored_form(tensor)
        self._file.add(name, dtype, shape, raw)
        self.tensors[name] = {
            "file": f"{self._folder.name}/{self._file.path.name}",
            "dtype": name_of(tensor.dtype),
            "shape": list(tensor.shape),
            "bytes": memoryview(raw).nbytes,
        }
        if self._file.size >= FULL:
            self._end_file()

    def close(self) -> dict[str, Any]:
        """Returns the files and tensors when all are on the disk."""
        self._end_file()
        return {"files": self.written, "tensors": self.tensors}

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        path = self._file.path
        # A second pass over the file, from the system's cache: the header was written last.
        self.written.append(
            {"path": f"{self._folder.name}/{path.name}", "bytes": path.stat().st_size, "crc32": digest(path)}
        )
        self._file = None


def in_order(tensors: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """By falling item size: so every tensor of a file is aligned without gaps, which safetensors does not allow."""
    return sorted(tensors.items(), key=lambda entry: -entry[1].dtype.itemsize)


# -- tensors from the files of a checkpoint ---------------------------------------------------------------------------


class Reader:
    """The tensors of one checkpoint by name. Verify its files first."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._headers: dict[str, tuple[dict[str, Any], int]] = {}
        self._maps: dict[str, mmap.mmap] = {}

    def shape(self, code: Any) -> list[int] | None:
        """The shape of the tensor that a code refers to; None if the code is not a tensor."""
        if not isinstance(code, dict) or "$tensor" not in code:
            return None
        return self.manifest.tensors[code["$tensor"]].shape

    def read(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own."""
        return self.mapped(name).clone()

    def mapped(self, name: str) -> torch.Tensor:
        """A tensor in the file's own memory: nothing is read before it is used. Writing to it does not change the
        file."""
        stored = self.manifest.tensors[name]
        tensor = empty_for(name, stored.dtype, stored.shape)
        if not tensor.numel():
            return tensor
        path = self.folder / stored.file
        start, stop = self._range(path, stored.file, name)
        if not stop - start == stored.bytes == tensor.nbytes:
            raise damaged(path, f"has {stop - start} bytes for {name}, which needs {tensor.nbytes}")
        if stored.file not in self._maps:
            with open(path, "rb") as file:
                self._maps[stored.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        raw = torch.frombuffer(self._maps[stored.file], dtype=torch.uint8, count=stop - start, offset=start)
        # torch crashes on numbers that are not aligned; files that a save wrote are.
        return (raw.clone() if start % tensor.itemsize else raw).view(tensor.dtype).view(stored.shape)

    def _range(self, path: Path, file: str, name: str) -> tuple[int, int]:
        if file not in self._headers:
            self._headers[file] = read_header(path)
        header, begin = self._headers[file]
        if name not in header:
            raise damaged(path, f"does not have {name}, which checkpoint.json expects there")
        start, stop = header[name]["data_offsets"]
        return begin + start, begin + stop


# -- dtypes: their names, and how they are stored ---------------------------------------------------------------------


STORED = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
REAL = {"complex128": "F64", "complex64": "F32", "complex32": "F16"}  # stored with a last dimension of 2


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of this name; None if this torch has none."""
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def refusal(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be stored, as a clause that follows its name; empty if it can."""
    if tensor.layout is not torch.strided:
        return f"is {str(tensor.layout).removeprefix('torch.').replace('_', ' ')}; only dense tensors are stored"
    if tensor.device.type == "meta":
        return "is on the meta device and has no numbers"
    return "is quantized; store its int_repr(), scale and zero point" if tensor.is_quantized else ""


def stored_form(tensor: torch.Tensor) -> tuple[str, list[int], Any]:
    """A whole tensor's safetensors dtype and shape, and its bytes. A dtype that safetensors lacks is stored as bytes,
    with the item size as the last dimension; checkpoint.json has the tensor's own dtype and shape."""
    kept = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    name, shape = name_of(kept.dtype), list(kept.shape)
    raw = kept.reshape(-1).view(torch.uint8).numpy() if kept.numel() else b""
    if name in STORED:
        return STORED[name], shape, raw
    if name in REAL:
        return REAL[name], [*shape, 2], raw
    return "U8", [*shape, kept.dtype.itemsize], raw


def empty_for(name: str, dtype: str, shape: list[int]) -> torch.Tensor:
    """Memory for a stored tensor. Raises CheckpointError if this torch does not know its dtype."""
    found = dtype_of(dtype)
    if found is None:
        raise CheckpointError(
            f"{name} has dtype {dtype}, which torch {torch.__version__} does not know.", advice="Use a newer torch."
        )
    return torch.empty(shape, dtype=found, device="cpu")
