"""Chooses the reader of a file: by the `format` option, or by the file name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from paceline.data.error_policy import LostSamples, Policy
from paceline.data.formats import tar, tfrecord
from paceline.data.formats import text as text_lines
from paceline.data.size_limits import LINE, RECORD
from paceline.errors import UsageError

PACKED = (".gz", ".gzip", ".zlib", ".zz")
ENDINGS = {".tar": "tar", ".tgz": "tar", ".txt": "lines", ".csv": "lines", ".jsonl": "lines", ".text": "lines"}
READERS: dict[str, Callable[[Any, int, Policy, LostSamples, int], Iterator[Any]]] = {}


def reader_of(
    format: str, policy: Policy, losses: LostSamples, max_bytes: int | None = None
) -> Callable[[Any, int], Iterator[Any]]:
    """A function `read(path, start)` that yields a file's records in chunks."""
    if format not in ("auto", *READERS):
        raise UsageError(
            f"format={format!r} is not known.",
            advice=f"Choose from 'auto', {', '.join(map(repr, READERS))}.",
        )

    def read(path: Any, start: int) -> Iterator[Any]:
        known = format_of(path) if format == "auto" else format
        return READERS[known](path, start, policy, losses, max_bytes or (LINE if known == "lines" else RECORD))

    return read


def format_of(path: Any) -> str:
    """The format by the file name. The default is TFRecord, because TFRecord files have no fixed ending."""
    stem, ending = os.path.splitext(os.fspath(path).lower())
    if ending in PACKED:
        ending = os.path.splitext(stem)[1]
    return ENDINGS.get(ending, "tfrecord")


def read_any(make: Callable[[Any], Any]) -> Callable[[Any, int], Iterator[list[Any]]]:
    """Reads the iterable that `make(unit)` returns."""

    def read(unit: Any, start: int) -> Iterator[list[Any]]:
        items = islice(iter(make(unit)), start, None)
        while chunk := list(islice(items, 64)):
            yield chunk

    return read


READERS |= {"tfrecord": tfrecord.read, "tar": tar.read, "lines": text_lines.read}
