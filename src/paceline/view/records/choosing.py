"""Chooses records: by what was run, how it ended, labels, age and size. For `paceline runs`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from paceline.errors import UsageError
from paceline.record.about.lock import is_held
from paceline.record.about.removal import size_on_disk
from paceline.view.records.library import Library, RecordEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """What a record must be; an empty field asks for nothing. Ages are seconds."""

    status: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    script: str = ""  # a part of its path, or a pattern with *
    tags: tuple[str, ...] = ()  # all of them
    text: str = ""  # in the folder's name, the record's name, its note or its command
    older: float | None = None
    newer: float | None = None

    def takes(self, entry: RecordEntry, now: float) -> bool:
        age = now - (entry.started or 0.0)
        labels = entry.labels
        everything = "\n".join((entry.name, labels.name, labels.note, entry.command)).lower()
        return (
            (not self.status or entry.state in self.status)
            and (not self.verbs or entry.verb in self.verbs)
            and (not self.script or self.script in entry.script or fnmatchcase(entry.script, self.script))
            and set(self.tags) <= set(labels.tags)
            and (not self.text or self.text.lower() in everything)
            and (self.older is None or (entry.started is not None and age > self.older))
            and (self.newer is None or (entry.started is not None and age <= self.newer))
        )


def chosen(entries: Iterable[RecordEntry], asked: RecordFilter) -> list[RecordEntry]:
    """In the order of `entries`."""
    now = time.time()
    return [entry for entry in entries if asked.takes(entry, now)]


def is_in_use(library: Library, entry: RecordEntry) -> bool:
    """A record that must not be deleted: its run goes on, here or on another host."""
    return entry.state == "running" or is_held(library.root / entry.name)


def find(library: Library, typed: str) -> RecordEntry:
    """The record that a person means: `last`, a path, the folder's name or a part of it, or the record's name.
    UsageError if there is none, or if there are several."""
    entries = library.entries()
    if typed == "last" and entries:
        return entries[0]
    name = Path(typed).resolve().name if "/" in typed and (Path(typed) / "run.json").is_file() else typed.rstrip("/")
    for match in (
        [entry for entry in entries if entry.name == name],
        [entry for entry in entries if entry.labels.name == typed],
        [entry for entry in entries if name in entry.name or (entry.labels.name and name in entry.labels.name)],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            several = ", ".join(entry.name for entry in match[:4]) + (", …" if len(match) > 4 else "")
            raise UsageError(f"{typed} means several records: {several}.", advice="Type more of the name.")
    raise UsageError(f"There is no record {typed} in {library.root}.", advice="For the records, type: paceline runs")


def to_prune(
    library: Library,
    entries: Sequence[RecordEntry],
    *,
    keep: int | None = None,
    to_size: int | None = None,
    larger: int | None = None,
) -> list[tuple[RecordEntry, int]]:
    """Of these records, newest first, those to delete, with their sizes: all but the newest `keep`; those that are
    larger than `larger` bytes; the oldest until at most `to_size` bytes are left. Without any of the three, all. Never
    one in use."""
    sizes = {entry.name: size_on_disk(library.root / entry.name) for entry in entries}
    free = [entry for entry in entries if not is_in_use(library, entry)]
    found = set() if any(each is not None for each in (keep, to_size, larger)) else {entry.name for entry in free}
    if larger is not None:
        found |= {entry.name for entry in free if sizes[entry.name] > larger}
    if keep is not None:
        found |= {entry.name for entry in entries[keep:]}
    if to_size is not None:
        left = sum(size for name, size in sizes.items() if name not in found)
        for entry in reversed(free):
            if left <= to_size:
                break
            if entry.name not in found:
                found.add(entry.name)
                left -= sizes[entry.name]
    return [(entry, sizes[entry.name]) for entry in free if entry.name in found]
