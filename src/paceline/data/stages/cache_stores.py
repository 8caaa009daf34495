"""Where cached samples lie: rows of shared memory or of files, and files of whole passes.

Rows are checked: each has the CRC of its bytes beside it, which is written after them, so that a row that a killed run
left half written counts as missing, and any number of workers of a host may fill the same files. Files of passes are
written beside and moved into place.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import torch

from paceline.data.planning.order import Indices
from paceline.data.size_limits import STEP
from paceline.errors import DataError, UsageError

SHARE = 0.8  # of the memory that is free that a cache may take
END = 2**64 - 1  # in the place of a sample's size: the end
TOLD = 4096  # bytes of what is told after it, at most
UNLIMITED = 1 << 62  # what this program kept in memory before may be read into it again


def fingerprint(length: int, functions: Sequence[Callable[[Any], Any]]) -> str:
    """Says whether a folder holds what is wanted: as many samples, made by the same code."""
    told = hashlib.sha256(str(length).encode())
    for function in functions:
        code = getattr(function, "__code__", None)
        told.update(getattr(function, "__qualname__", type(function).__qualname__).encode())
        if code is not None:
            told.update(code.co_code + repr([c for c in code.co_consts if not hasattr(c, "co_code")]).encode())
    return told.hexdigest()[:16]


def as_array(leaf: Any) -> np.ndarray[Any, Any] | None:
    """A leaf that can lie in a row; None for what cannot."""
    if isinstance(leaf, torch.Tensor):
        return leaf.numpy() if leaf.device.type == "cpu" and leaf.dtype is not torch.bfloat16 else None
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(leaf)
        return array if array.dtype.kind in "biufc" else None
    return None


def rows_for(leaves: list[Any], length: int, folder: str | None, told: str) -> Rows | None:
    """Rows for samples like this one; None where they cannot lie in rows."""
    arrays = [as_array(leaf) for leaf in leaves]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or not known:
        return None
    need = length * sum(array.nbytes for array in known)
    if folder is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _page_cache()
        if need > SHARE * free:
            raise UsageError(
                f"Asked for a cache of {length} samples, {need / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free.",
                advice="Cache in a folder (.cache('DIR')), or before the samples are decoded.",
            )
    return Rows(known, length, None if folder is None else _home(Path(folder), known, told))


def _page_cache() -> int:
    """Bytes of memory that the kernel would give back at once."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Cached:", "Buffers:")))


def _home(folder: Path, arrays: list[np.ndarray[Any, Any]], told: str) -> Path:
    """The folder of rows of this shape, of this code: others are left alone."""
    shapes = repr([(array.dtype.str, array.shape) for array in arrays])
    home = folder / f"{told}-{hashlib.sha256(shapes.encode()).hexdigest()[:8]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Asked for a cache in {folder}: {error.strerror or error}.", advice="Give a folder that can be written."
        ) from None
    return home


class Rows:
    """`length` rows like these arrays, and which of them are there."""

    def __init__(self, like: list[np.ndarray[Any, Any]], length: int, home: Path | None) -> None:
        self._like = [(array.dtype, array.shape) for array in like]
        self._home = home
        self._arrays = [
            np.ndarray((length, *shape), dtype.newbyteorder("="), self._memory(f"{number}.rows", length * array.nbytes))
            for number, (array, (dtype, shape)) in enumerate(zip(like, self._like, strict=True))
        ]
        self.columns = [torch.from_numpy(array) for array in self._arrays]
        # 0: not there; 1: there, but not looked at in this run; else the CRC, which is never 0 or 1.
        self._checks = np.ndarray(length, np.uint32, self._memory("checks", 4 * length))
        self._seen = np.zeros(length, bool) if home is not None else None

    def _memory(self, name: str, size: int) -> mmap.mmap:
        """Shared, so that processes that are forked later fill the same rows."""
        if self._home is None:
            return mmap.mmap(-1, max(1, size))
        with open(self._home / name, "a+b") as file:
            if os.fstat(file.fileno()).st_size < max(1, size):
                os.ftruncate(file.fileno(), max(1, size))
            return mmap.mmap(file.fileno(), max(1, size))

    def held(self, indices: Indices) -> np.ndarray[Any, np.dtype[np.bool_]]:
        there = self._checks[indices] != 0
        if self._seen is not None:
            for number in np.flatnonzero(there & ~self._seen[indices]):
                there[number] = self.has(int(indices[number]))
        return there

    def has(self, index: int) -> bool:
        if not self._checks[index]:
            return False
        if self._seen is not None and not self._seen[index]:
            if self._checks[index] != self._check(index):
                self._checks[index] = 0
                return False
            self._seen[index] = True
        return True

    def put(self, index: int, leaves: list[Any]) -> bool:
        """False where this sample is not like the others."""
        arrays = [as_array(leaf) for leaf in leaves]
        if [None if array is None else (array.dtype, array.shape) for array in arrays] != self._like:
            return False
        for rows, array in zip(self._arrays, arrays, strict=True):
            rows[index] = array
        self._checks[index] = self._check(index) if self._seen is not None else 2
        return True

    def get(self, index: int, like: list[Any]) -> list[Any]:
        """A sample's leaves, of the kinds that they are of in `like`."""
        found: list[Any] = []
        for rows, leaf in zip(self._arrays, like, strict=True):
            if isinstance(leaf, torch.Tensor):
                found.append(torch.from_numpy(np.array(rows[index])))
            elif isinstance(leaf, np.ndarray):
                found.append(np.array(rows[index]))
            else:
                found.append(rows[index] if isinstance(leaf, np.generic) else rows[index].item())
        return found

    def _check(self, index: int) -> int:
        check = 0
        for rows in self._arrays:
            check = zlib.crc32(np.ascontiguousarray(rows[index]).view(np.uint8).tobytes(), check)
        return max(2, check)


def write_pass(path: Path, samples: list[Any]) -> None:
    """A whole pass as one file: complete, or not there."""
    from paceline.data.formats.sample import encode

    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    check = 0
    with open(beside, "wb") as file:
        for sample in samples:
            raw = encode(sample)
            check = zlib.crc32(raw, check)
            file.write(len(raw).to_bytes(8, "little") + raw)
        file.write(END.to_bytes(8, "little") + msgspec.json.encode({"samples": len(samples), "crc32": check}))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def read_pass(path: Path | None) -> list[Any] | None:
    """The samples of a pass; None where there is no such file. One that is damaged is an error, not a smaller set."""
    from paceline.data.formats.sample import decode

    if path is None or not path.exists():
        return None
    try:
        with open(path, "rb") as file:
            sizes = _checked_sizes(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            samples = []
            for size in sizes:
                file.seek(8, os.SEEK_CUR)
                samples.append(decode(file.read(size), max_bytes=UNLIMITED))
        return samples
    except (ValueError, OSError, RecursionError, DataError) as error:
        told = error.message if isinstance(error, DataError) else str(error)
        raise DataError(f"The cached pass {path} is damaged: {told}.", advice=f"Delete it: rm {path}") from None


def _checked_sizes(file: IO[bytes], left: int) -> list[int]:
    """The sizes of its samples. Nothing is decoded before all of it is checked."""
    sizes, check = list[int](), 0
    while (size := int.from_bytes(head := file.read(8), "little")) != END:
        left -= 8
        if len(head) < 8 or size > left:
            raise ValueError(f"it ends in the middle of sample {len(sizes)}, at byte {file.tell()}")
        left -= size
        sizes.append(size)
        while size:
            part = file.read(min(size, STEP))
            if not part:
                raise ValueError(f"it ends in the middle of sample {len(sizes)}, at byte {file.tell()}")
            check = zlib.crc32(part, check)
            size -= len(part)
    told = file.read(TOLD)
    if msgspec.json.decode(told) != {"samples": len(sizes), "crc32": check}:
        raise ValueError("its checksum is wrong")
    return sizes
