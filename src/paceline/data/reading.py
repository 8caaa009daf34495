"""Which reader reads a file: by what was asked for, or by its name."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from paceline.data import tar, tfrecord
from paceline.data.losses import Losses, Policy
from paceline.data.places import open_file, unpacked
from paceline.errors import DataError, UsageError

BLOCK = 1 << 18  # bytes that are read at once
LONGEST = 1 << 28  # bytes of a line
PACKED = (".gz", ".gzip", ".zlib", ".zz")
ENDINGS = {".tar": "tar", ".tgz": "tar", ".txt": "lines", ".csv": "lines", ".jsonl": "lines", ".text": "lines"}
READERS: dict[str, Callable[[Any, int, Policy, Losses], Iterator[Any]]] = {}


def reader_of(format: str, policy: Policy, losses: Losses) -> Callable[[Any, int], Iterator[Any]]:
    """`read(path, start)`, which gives a file's records in chunks."""
    if format not in ("auto", *READERS):
        raise UsageError(
            f"Asked for records of the format {format!r}.",
            advice=f"It takes 'auto', {', '.join(map(repr, READERS))}.",
        )
    return lambda path, start: READERS[format_of(path) if format == "auto" else format](path, start, policy, losses)


def format_of(path: Any) -> str:
    """TFRecord, unless its name says otherwise: TFRecord files are called all sorts of things."""
    stem, ending = os.path.splitext(os.fspath(path).lower())
    if ending in PACKED:
        ending = os.path.splitext(stem)[1]
    return ENDINGS.get(ending, "tfrecord")


def read_any(make: Callable[[Any], Any]) -> Callable[[Any, int], Iterator[list[Any]]]:
    """Reads what `make(unit)` gives to iterate."""

    def read(unit: Any, start: int) -> Iterator[list[Any]]:
        items = islice(iter(make(unit)), start, None)
        while chunk := list(islice(items, 64)):
            yield chunk

    return read


def read_lines(path: Any, start: int, policy: Policy, losses: Losses) -> Iterator[list[str]]:
    """A text file's lines, without their ends."""
    raw = open_file(path)
    head = raw.read(2)
    raw.seek(0)
    file = unpacked(raw, head) if os.fspath(path).lower().endswith(PACKED) else raw
    number = 0
    try:
        for lines in _raw_lines(file):
            kept = lines[max(0, start - number) :]
            number += len(lines)
            if kept:
                yield [line.decode("utf-8", errors="replace").rstrip("\r") for line in kept]
    except (OSError, EOFError, zlib.error) as error:
        losses.lose(DataError(f"{path}, after line {number}: {error}.", advice="Write the file again."), policy)
    finally:
        raw.close()


def _raw_lines(file: Any) -> Iterator[list[bytes]]:
    rest: list[bytes] = []  # of a line whose end is yet to come
    held = 0
    while block := file.read(BLOCK):
        first, *more = block.split(b"\n")
        rest.append(first)
        held += len(first)
        if held > LONGEST:
            raise OSError(f"a line of more than {LONGEST} bytes")
        if more:
            yield [b"".join(rest), *more[:-1]]
            rest, held = [more[-1]], len(more[-1])
    if held:
        yield [b"".join(rest)]


READERS |= {"tfrecord": tfrecord.read, "tar": tar.read, "lines": read_lines}
