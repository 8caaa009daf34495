"""The file `labels.json`: a record's name, tags and note, which people give it, at its start or later."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from paceline.errors import RecordError, UsageError
from paceline.record.folder import unwritable
from paceline.record.inside import Folder

FILE = "labels.json"
LARGEST = 1 << 20  # bytes
LONGEST_NAME, LONGEST_TAG, LONGEST_NOTE = 100, 60, 10_000  # characters


class Labels(msgspec.Struct, kw_only=True, frozen=True):
    """What people say about a record."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.name or self.tags or self.note)


def labels_of(name: str | None = None, tags: Iterable[str] = (), note: str | None = None) -> Labels:
    """Labels as typed. UsageError if one cannot be used."""
    return Labels(name=checked_name(name or ""), tags=checked_tags(tags), note=checked_note(note or ""))


def checked_name(name: str) -> str:
    if len(name) > LONGEST_NAME or not name.isprintable() or "/" in name or name != name.strip():
        raise UsageError(
            f"--name {name[:200]!r}: not a name.", advice=f"Type one line of at most {LONGEST_NAME} signs, without /"
        )
    return name


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags without repetition, in their order; `a,b` is two."""
    found = dict.fromkeys(tag for each in tags for tag in each.split(",") if tag)
    for tag in found:
        if not re.fullmatch(rf"[\w.:=+@-]{{1,{LONGEST_TAG}}}", tag):
            raise UsageError(
                f"--tag {tag[:200]!r}: not a tag.",
                advice=f"Type at most {LONGEST_TAG} letters, digits or . : = + @ - _, such as: --tag baseline",
            )
    return tuple(found)


def checked_note(note: str) -> str:
    if len(note) > LONGEST_NOTE:
        raise UsageError(
            f"--note: {len(note):,} characters are too many.", advice=f"Type at most {LONGEST_NOTE:,} characters."
        )
    return note


def write_labels(folder: Path | Folder, labels: Labels) -> None:
    """Replaces the labels atomically, and follows no link below the folder that the caller named. RecordError if the
    record cannot be written."""
    inside, fresh = Folder.of(folder), f".{FILE}.new"
    try:
        here = inside.open()
        try:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=here)
            mode = os.fstat(here).st_mode & 0o666
            written = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=here)
            with os.fdopen(written, "wb") as file:
                os.fchmod(written, mode)
                file.write(msgspec.json.format(msgspec.json.encode(labels), indent=2) + b"\n")
            os.replace(fresh, FILE, src_dir_fd=here, dst_dir_fd=here)
        finally:
            os.close(here)
    except OSError as error:
        raise unwritable(inside.path / FILE, error) from error


def read_labels(folder: Path | Folder) -> Labels:
    """The labels of a record; none if the file is missing or damaged."""
    try:
        return msgspec.json.decode(Folder.of(folder).file(FILE).read(LARGEST), type=Labels)
    except (OSError, RecordError, msgspec.DecodeError, RecursionError):
        return Labels()
