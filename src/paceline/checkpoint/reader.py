"""Reads tensors from the files of a checkpoint."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import torch

from paceline.checkpoint import dtypes
from paceline.checkpoint.manifest import Manifest, damaged
from paceline.checkpoint.safetensors_file import read_header


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
        tensor = dtypes.empty_for(name, stored.dtype, stored.shape)
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
