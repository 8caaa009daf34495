"""Storage of cached samples: rows in shared memory or files, and files with a whole epoch of a stream.

The CRC of a row is written after its bytes. So a row that a killed run left half written counts as missing, and any
number of workers of a host may fill the same files. Files of an epoch are written under a temporary name and renamed.
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

SHARE = 0.8  # of the free memory that a cache may take
END = 2**64 - 1  # marks the end, where a sample's size would be
SUMMARY = 4096  # bytes of the summary after the end mark, at most
UNLIMITED = 1 << 62  # these samples were in memory before they were written, so no limit applies


def fingerprint(length: int, functions: Sequence[Callable[[Any], Any]]) -> str:
    """Identifies a cache folder: the number of samples, and the code that makes them."""
    digest = hashlib.sha256(str(length).encode())
    for function in functions:
        code = getattr(function, "__code__", None)
        digest.update(getattr(function, "__qualname__", type(function).__qualname__).encode())
        if code is not None:
            digest.update(code.co_code + repr([c for c in code.co_consts if not hasattr(c, "co_code")]).encode())
    return digest.hexdigest()[:16]


def as_array(leaf: Any) -> np.ndarray[Any, Any] | None:
    """The leaf as an array for a row; None if it cannot be one."""
    if isinstance(leaf, torch.Tensor):
        return leaf.numpy() if leaf.device.type == "cpu" and leaf.dtype is not torch.bfloat16 else None
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(leaf)
        return array if array.dtype.kind in "biufc" else None
    return None


def rows_for(leaves: list[Any], length: int, folder: str | None, digest: str) -> Rows | None:
    """Rows for samples with these leaves; None if the leaves cannot be stored in rows."""
    arrays = [as_array(leaf) for leaf in leaves]
    known = [array for array in arrays if array is not None]
    if len(known) < len(arrays) or not known:
        return None
    need = length * sum(array.nbytes for array in known)
    if folder is None:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _page_cache()
        if need > SHARE * free:
            raise UsageError(
                f".cache() of {length} samples needs {need / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free.",
                advice="Cache in a folder (.cache('DIR')), or before the samples are decoded.",
            )
    return Rows(known, length, None if folder is None else _home(Path(folder), known, digest))


def _page_cache() -> int:
    """Bytes of cached file contents, which the kernel frees on demand."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Cached:", "Buffers:")))


def _home(folder: Path, arrays: list[np.ndarray[Any, Any]], digest: str) -> Path:
    """The folder for rows of these shapes made by this code, so that other caches in `folder` stay untouched."""
    shapes = repr([(array.dtype.str, array.shape) for array in arrays])
    home = folder / f"{digest}-{hashlib.sha256(shapes.encode()).hexdigest()[:8]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f".cache({str(folder)!r}): the folder cannot be made: {error.strerror or error}.",
            advice="Give a folder that you can write to.",
        ) from None
    return home


class Rows:
    """`length` rows with the shapes and types of these arrays, and which rows are filled."""

    def __init__(self, like: list[np.ndarray[Any, Any]], length: int, home: Path | None) -> None:
        self._like = [(array.dtype, array.shape) for array in like]
        self._home = home
        self._arrays = [
            np.ndarray((length, *shape), dtype.newbyteorder("="), self._memory(f"{number}.rows", length * array.nbytes))
            for number, (array, (dtype, shape)) in enumerate(zip(like, self._like, strict=True))
        ]
        self.columns = [torch.from_numpy(array) for array in self._arrays]
        # 0: the row is not filled; in memory 2: the row is filled; in a file: the row's CRC, which is never 0 or 1.
        self._checks = np.ndarray(length, np.uint32, self._memory("checks", 4 * length))
        self._seen = np.zeros(length, bool) if home is not None else None

    def _memory(self, name: str, size: int) -> mmap.mmap:
        """Shared memory, so that processes that are forked later fill the same rows."""
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
        """Stores a sample; False if its shapes or types differ from those of the rows."""
        arrays = [as_array(leaf) for leaf in leaves]
        if [None if array is None else (array.dtype, array.shape) for array in arrays] != self._like:
            return False
        for rows, array in zip(self._arrays, arrays, strict=True):
            rows[index] = array
        self._checks[index] = self._check(index) if self._seen is not None else 2
        return True

    def get(self, index: int, like: list[Any]) -> list[Any]:
        """A sample's leaves, of the same types as the leaves in `like`."""
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
    """Writes an epoch to one file. The file is either complete or missing."""
    from paceline.data.formats.sample import encode

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    check = 0
    with open(temporary, "wb") as file:
        for sample in samples:
            raw = encode(sample)
            check = zlib.crc32(raw, check)
            file.write(len(raw).to_bytes(8, "little") + raw)
        file.write(END.to_bytes(8, "little") + msgspec.json.encode({"samples": len(samples), "crc32": check}))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_pass(path: Path | None) -> list[Any] | None:
    """The samples of an epoch; None if there is no such file. A damaged file raises DataError."""
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
        reason = error.message if isinstance(error, DataError) else str(error)
        raise DataError(f"The cache file {path} is damaged: {reason}.", advice=f"Delete it: rm {path}") from None


def _checked_sizes(file: IO[bytes], left: int) -> list[int]:
    """The sizes of the file's samples. Checks the whole file before anything is decoded."""
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
    summary = file.read(SUMMARY)
    if msgspec.json.decode(summary) != {"samples": len(sizes), "crc32": check}:
        raise ValueError("its checksum is wrong")
    return sizes
