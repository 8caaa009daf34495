"""Caching: keeps samples in memory or in a folder, so that each is made only once.

Indexed samples are kept by index (`Memo`), in whatever order they are asked for; of a stream, a whole epoch is kept
(`Cached`). Both keep samples before shuffling and batching.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import torch

from paceline.data.error_policy import LostSamples
from paceline.data.planning.job import NOTHING, Step
from paceline.data.planning.nodes import Context, Cursor, Mark, Opener, Settle, Settled
from paceline.data.planning.order import Indices
from paceline.data.size_limits import STEP
from paceline.data.sources.memory import Source
from paceline.errors import DataError, UsageError
from paceline.script import tree


class Memo:
    """The samples of another source after some maps, each made once. Samples of equal shapes and types are stored in
    rows of shared memory (or of files): a batch is one gather, and all processes see the rows that one of them
    fills."""

    def __init__(self, source: Source, steps: Sequence[Step], folder: str | None, losses: LostSamples) -> None:
        self.source, self.steps, self.folder, self.losses = source, tuple(steps), folder, losses
        self.gather: Callable[[Indices], Any] | None = self._gather
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        self._odd: dict[int, Any] = {}  # samples whose shapes or types differ from those of the rows
        self._nest: Any = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def fetch(self, index: int) -> Any:
        if self._rows is not None and self._rows.has(index):
            return tree.rebuild(self._nest, iter(self._rows.get(index, tree.leaves(self._nest))))
        if index in self._odd:
            return self._odd[index]
        sample = self._make(index)
        self._keep(index, sample)
        return sample

    def _gather(self, indices: Indices) -> Any:
        from paceline.data.formats.collate import collate

        for index in self.missing(indices).tolist():
            self.fetch(index)
        if self._rows is None or self._odd:
            return collate([self.fetch(index) for index in indices.tolist()])
        chosen = torch.from_numpy(indices)
        return tree.rebuild(self._nest, iter([column.index_select(0, chosen) for column in self._rows.columns]))

    def missing(self, indices: Indices) -> Indices:
        """The indices whose samples are not cached yet."""
        return indices if self._rows is None else indices[~self._rows.held(indices)]

    def _make(self, index: int) -> Any:
        sample = self.source.fetch(index)
        for step in self.steps:
            sample = step(sample, lambda _: self.source.name(index), 0, self.losses)
            if sample is NOTHING:
                raise UsageError(
                    f"map {step.name} left out {self.source.name(index)}, but .cache() after it needs every sample.",
                    advice="Leave such samples out before the map (.filter), or write .cache() before this map.",
                )
        return sample

    def _keep(self, index: int, sample: Any) -> None:
        leaves = tree.leaves(sample)
        with self._lock:
            if self._rows is None and not self._odd:
                self._nest = sample
                self._rows = rows_for(leaves, len(self.source), self.folder, self._fingerprint())
            if self._rows is None or not self._rows.put(index, leaves):
                if self.folder is not None:
                    raise UsageError(
                        f".cache({self.folder!r}): the samples are not arrays and numbers of equal shapes.",
                        advice="Write .cache() after a map that gives them equal shapes, or cache in memory: .cache()",
                    )
                self._odd[index] = sample

    def _fingerprint(self) -> str:
        return fingerprint(len(self.source), [step.function for step in self.steps])


class Cached:
    """An epoch of a stream: recorded in the first epoch, and read from memory (or a file) afterwards."""

    even = False

    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.kept: list[Any] | None = None

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        at, inner = (0, None) if mark is None else (int(mark["at"]), mark["up"])
        if self.kept is None and self.folder is not None:
            self.kept = read_pass(self._file(context))
        if self.kept is not None:
            return CachedCursor(self, None, self._file(context), at, self.kept[:at])
        if inner is not None:  # resumes in the middle of an epoch; the next whole epoch is recorded
            return CachedCursor(self, up(context, inner), None, at, None)
        cursor = CachedCursor(self, up(context, None), self._file(context), 0, [])
        while at and (got := len(cursor.take(min(at, 256)))):
            at -= got
        return cursor

    def _file(self, context: Context) -> Path | None:
        return self.folder and Path(self.folder) / f"pass.{context.rank}of{context.world}.records"  # type: ignore[return-value]

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        if any(mark is not None and "end" not in mark and mark["up"] is None and mark["at"] for mark in marks):
            raise UsageError(
                "restore() on another number of workers is not possible here: each worker has cached its own part of a "
                "stream.",
                advice="Restore on the same number of workers.",
            )
        inner = below([mark if mark is None or "end" in mark else mark["up"] for mark in marks])
        return lambda context: {"at": 0, "up": inner(context)}


class CachedCursor(Cursor):
    """Without `up`, reads the samples that were recorded."""

    def __init__(self, node: Cached, up: Cursor | None, file: Path | None, at: int, recorded: list[Any] | None) -> None:
        self._node, self._up, self._file, self._at = node, up, file, at
        self._recorded = recorded

    def take(self, count: int) -> list[Any]:
        if self._up is None:
            assert self._node.kept is not None
            got = self._node.kept[self._at : self._at + count]
        else:
            got = list(self._up.take(count))
            if self._recorded is not None:
                self._recorded += got
                if len(got) < count and self._node.kept is None:
                    self._node.kept = self._recorded
                    if self._file is not None:
                        write_pass(self._file, self._recorded)
        self._at += len(got)
        return got

    def where(self) -> Callable[[int], str]:
        return Cursor.where(self) if self._up is None else self._up.where()

    def mark(self) -> Mark:
        return {"at": self._at, "up": None if self._up is None else self._up.mark()}

    def close(self, *, wait: bool = True) -> None:
        if self._up is not None:
            self._up.close(wait=wait)


# -- where samples are kept -------------------------------------------------------------------------------------------
# The CRC of a row is written after its bytes. So a row that a killed run left half written counts as missing, and any
# number of workers of a host may fill the same files. Files of an epoch are written under a temporary name and renamed.


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
