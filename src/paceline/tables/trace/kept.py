"""Keeps the columns of a large trace beside its file, so that the next program to open the record need not parse it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from paceline.errors import RecordError
from paceline.record.inside import File, Folder
from paceline.tables.trace.columns import EVENTS, KIND, LATEST, LONGEST_NAME, MEMORY, MOST_NAMES, Trace
from paceline.tables.trace.json_reader import Head

WORTH_IT = 20_000  # events; fewer are parsed in a moment
_CODED = ("name", "shapes", "types")


class _Kept(msgspec.Struct, kw_only=True):
    rank: int
    world: int
    base: int
    head: Head
    threads: list[tuple[int, int, str]]
    texts: dict[str, list[str]]


def keep(trace: Trace) -> bool:
    """Writes the copy of a trace, if the trace is large. Returns whether there is one now: a folder that cannot be
    written, or that belongs to another account, has none."""
    if trace.events.height < WORTH_IT:
        return False
    file = File.of(trace.path)
    arrays = {f"memory.{name}": trace.memory[name].to_numpy() for name in MEMORY}
    texts = {}
    for name in EVENTS:
        column = trace.events[name]
        if isinstance(column.dtype, pl.Enum):
            if name in _CODED:
                texts[name] = column.dtype.categories.to_list()
            column = column.to_physical()
        arrays[name] = column.to_numpy()
    arrays["end"] = arrays["end"] - arrays["start"]  # lengths are small numbers
    head = _Kept(
        rank=trace.rank,
        world=trace.world,
        base=trace.base + trace.ahead,
        head=trace.head,
        threads=[(*who, label) for who, label in trace.threads.items()],
        texts=texts,
    )
    return write(file.folder, file.name + ENDING, head, arrays, of=[file])


def read_kept(path: Path | File, *, most: int) -> Trace | None:
    """The trace of this file from its copy; None if there is no copy of exactly this file, or none with at most `most`
    events."""
    file = File.of(path)
    try:
        found = read(file.folder.file(file.name + ENDING), _Kept, of=[file])
        if found is None or found.count("kind") + found.count("memory.time") > most:
            return None
        return _decoded(path, found)
    except (*DAMAGED, pl.exceptions.PolarsError):
        return None


def _decoded(path: Path | File, found: ColumnFile[_Kept]) -> Trace:
    head, start = found.head, found.numbers("start", least=-1000 * LATEST, most=1000 * LATEST)
    columns = []
    for name, dtype in EVENTS.items():
        if name in _CODED:
            known = head.texts[name]
            if len(known) > MOST_NAMES or any(len(text) > LONGEST_NAME for text in known):
                raise ValueError(name)
            columns.append(_gathered(found, name, pl.Series(known, dtype=pl.String), pl.Enum(known)))
        elif dtype == KIND:
            columns.append(_gathered(found, name, KIND.categories, KIND))
        else:
            values: Integers = start
            if name == "end":
                values = start + found.numbers(name, least=0, most=1000 * LATEST)
            elif name != "start":
                values = found.numbers(name)
            columns.append(pl.Series(name, values).cast(dtype))
    return Trace(
        path=path,
        rank=head.rank,
        world=head.world,
        base=head.base,
        events=pl.DataFrame(columns),
        memory=pl.DataFrame(
            [pl.Series(name, found.numbers(f"memory.{name}")).cast(dtype) for name, dtype in MEMORY.items()]
        ),
        head=head.head,
        threads={(process, thread): label for process, thread, label in head.threads},
    )


def _gathered(found: ColumnFile[_Kept], name: str, texts: pl.Series, form: pl.Enum) -> pl.Series:
    return texts.cast(form).gather(found.numbers(name, least=0, most=len(texts) - 1)).alias(name)


# -- files of columns -------------------------------------------------------------------------------------------------
# Such a file may be missing, old or damaged, and is then ignored. It holds integers, in the narrowest type of each
# column, and a head in JSON. What uses them must check every number, because a record may come from an untrusted
# source.


Integers = NDArray[Any]
T = TypeVar("T")

ENDING = ".columns"  # of the files' names
FORM = "paceline columns 1"
_EDGE = 1 << 16  # bytes at the start and the end of a trace that identify it; a gzip file ends with its checksum
_ALIGNED = 8
_LARGEST_HEAD = 512 << 20
_INTEGERS = ("i1", "i2", "i4", "i8")


class _Column(msgspec.Struct):
    at: int
    count: int
    form: str  # of numpy
    zero: int = 0  # added to each number


class _File(msgspec.Struct, Generic[T], kw_only=True):
    form: str
    source: str  # identifies the files that the columns come from
    columns: dict[str, _Column]
    head: T


class ColumnFile(Generic[T]):
    """A file that was read: its head, and its columns."""

    def __init__(self, file: _File[T], data: bytes) -> None:
        self.head, self._columns, self._data = file.head, file.columns, data

    def count(self, name: str) -> int:
        return self._columns[name].count

    def numbers(self, name: str, *, least: int | None = None, most: int | None = None) -> Integers:
        """A column. ValueError or another error of `read`'s if it is not in the file, or has a number below `least` or
        above `most`."""
        told = self._columns[name]
        if told.form not in (*_INTEGERS, "u8") or min(told.at, told.count) < 0:
            raise ValueError(told.form)
        found = np.frombuffer(self._data, f"<{told.form}", told.count, told.at)
        if told.form != "u8":
            found = found.astype(np.int64) + told.zero
        if len(found) and (
            (least is not None and int(found.min()) < least) or (most is not None and int(found.max()) > most)
        ):
            raise ValueError(name)
        return found


# What reading a damaged file may raise, beside the errors of polars.
DAMAGED = (OSError, RecordError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError, AssertionError)


def write(folder: Folder, name: str, head: Any, columns: Mapping[str, Integers], *, of: Iterable[File]) -> bool:
    """Writes a file, which comes from the files `of`. Returns whether it is there: not in a folder that cannot be
    written, or that belongs to another account."""
    try:
        here = folder.open()
    except OSError:
        return False
    try:
        if os.fstat(here).st_uid != os.geteuid():
            return False
        _put(here, name, _encoded(identity(of), head, columns))
    except (OSError, RecordError):
        return False
    finally:
        os.close(here)
    return True


def _put(here: int, name: str, parts: Iterable[bytes]) -> None:
    fresh, mode = f".{name}.{os.getpid()}", os.fstat(here).st_mode & 0o666
    # A new file, moved into place: a link in a record of somebody else's must not be written through.
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)
    try:
        with os.fdopen(descriptor, "wb") as out:
            for part in parts:
                out.write(part)
        os.rename(fresh, name, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=here)
        raise


def read(file: File, form: type[T], *, of: Iterable[File]) -> ColumnFile[T] | None:
    """The file, if it comes from exactly the files `of`; None if there is none, or if it is damaged."""
    try:
        with file.open() as opened:
            size = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(_ALIGNED), "little")
            if not 0 < length <= min(size - _ALIGNED, _LARGEST_HEAD):
                return None
            told = msgspec.json.decode(opened.read(length), type=_File[form])  # type: ignore[valid-type]
            if told.form != FORM or told.source != identity(of):
                return None
            return ColumnFile(told, opened.read(size - _ALIGNED - length))
    except DAMAGED:
        return None


def _encoded(source: str, head: Any, columns: Mapping[str, Integers]) -> list[bytes]:
    at, told, parts = 0, {}, []
    for name, values in columns.items():
        zero, narrow = _narrowed(values)
        told[name] = _Column(at, len(narrow), narrow.dtype.str.lstrip("<|"), zero)
        raw = narrow.tobytes()
        parts += [raw, bytes(-len(raw) % _ALIGNED)]
        at += -(-len(raw) // _ALIGNED) * _ALIGNED
    text = msgspec.json.encode(_File(form=FORM, source=source, columns=told, head=head))
    text += b" " * (-len(text) % _ALIGNED)
    return [len(text).to_bytes(_ALIGNED, "little"), text, *parts]


def _narrowed(values: Integers) -> tuple[int, Integers]:
    """A number, and the narrowest integers that give the values when it is added. Addresses stay as they are."""
    if values.dtype == np.uint64:
        return 0, values.astype("<u8")
    if not len(values):
        return 0, values.astype("<i1")
    low, high = int(values.min()), int(values.max())
    zero = low if high - low < 1 << 31 and not -128 <= low <= high < 128 else 0
    for form in _INTEGERS:
        if np.iinfo(form).min <= low - zero and high - zero <= np.iinfo(form).max:
            return zero, (values.astype(np.int64) - zero).astype(f"<{form}")
    raise AssertionError("64 bits hold every integer")


def identity(files: Iterable[File]) -> str:
    """Identifies files by their names, sizes, beginnings and ends."""
    digest = hashlib.sha256()
    for file in files:
        with file.open() as opened:
            size = os.fstat(opened.fileno()).st_size
            digest.update(f"{file.name} {size} ".encode())
            digest.update(opened.read(_EDGE))
            opened.seek(max(size - _EDGE, 0))
            digest.update(opened.read(_EDGE))
    return digest.hexdigest()
