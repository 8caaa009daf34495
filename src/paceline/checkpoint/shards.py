"""The tensor files that one worker writes, each tensor whole in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoint import dtypes
from paceline.checkpoint.safetensors_file import SafetensorsWriter, header_room
from paceline.checkpoint.verify import digest

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
        dtype, shape, raw = dtypes.stored_form(tensor)
        self._file.add(name, dtype, shape, raw)
        self.tensors[name] = {
            "file": f"{self._folder.name}/{self._file.path.name}",
            "dtype": dtypes.name_of(tensor.dtype),
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
