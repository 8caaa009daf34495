"""The folder of records: lists and opens the records in this folder, and nothing outside.

A record's name is its path below the folder. Whatever a browser requests, only folders below the root that hold a
run.json are opened. The root may be a symbolic link, because the user named the root. Below the root no link is
followed, and a link in place of a record's folder is not listed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import NoRecordError, PacelineError, RecordError
from paceline.record.about.labels import Labels, read_labels
from paceline.record.about.origin import read_origin
from paceline.record.folder import TRACES
from paceline.record.inside import Folder
from paceline.record.schema import Run
from paceline.tables.delays import Columns
from paceline.tables.figures import Figures, columns_of, figures, kept_figures
from paceline.view.records.headline import headline
from paceline.view.records.limits import ViewLimits
from paceline.view.records.reading import read_bounded_run, read_tail, state_of

if TYPE_CHECKING:
    from paceline.view.records.record import Opened

OPEN = 8  # records kept in memory; all their traces together may have ViewLimits.events events
MOST_RUNS = 5000  # records in the list: the newest
MOST_STEPS = 8 << 20  # bytes of a record's steps that the list reads
_FILES = (
    "run.json",
    "labels.json",
    "verdict.json",
    "findings.json",
    "steps.rank*.jsonl",
    "logged.jsonl",
    *TRACES,
    "devices.jsonl",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEntry:
    """A record in the list. `problem` says why the record, or a file of it, cannot be read."""

    name: str
    verb: str = ""
    script: str = ""
    started: float | None = None
    workers: int | None = None
    mods: tuple[str, ...] = ()
    steps: int | None = None
    samples_per_s: float | None = None
    figures: Figures = Figures()  # noqa: RUF009
    labels: Labels = Labels()  # noqa: RUF009
    command: str = ""  # as typed; empty: not known
    batch: int | None = None
    loss: float | None = None
    seconds: float | None = None
    state: str = "damaged"
    traced: bool = False
    result: str = ""  # the main result, in words
    problem: str = ""


class Library:
    """All records below one folder. Safe to use from several threads."""

    def __init__(self, root: Path, limits: ViewLimits | None = None) -> None:
        self.root = Path(root).resolve()
        self.limits = limits or ViewLimits()
        self._folder = Folder(self.root)
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[object, Opened]] = OrderedDict()
        self._entries: dict[str, tuple[object, RecordEntry]] = {}

    def find(self, name: str) -> Folder:
        """The folder of a record. Raises NoRecordError if there is no such record, or if a link is in its path."""
        parts = name.strip("/").split("/")
        missing = NoRecordError(
            f"There is no record {name[:200]!r} in {self.root}.", advice="Choose a record from the list."
        )
        if "\0" in name or any(not part or part.startswith(".") for part in parts):
            raise missing
        folder = self._folder.folder(*parts)
        if not folder.file("run.json").exists():
            raise missing
        return folder

    def open(self, name: str) -> Opened:
        """Opens a record. Returns the same object until a file of the record changes."""
        from paceline.view.records.record import Opened  # needs the extra `view`, and lists do not

        name = name.strip("/")
        folder = self.find(name)
        stamp = _stamp(folder)
        with self._lock:
            known = self._open.get(name)
            if known is None or known[0] != stamp:
                known = (stamp, Opened.of(name, folder, self.limits))
                self._open[name] = known
            self._open.move_to_end(name)
            while len(self._open) > OPEN or (len(self._open) > 1 and self._events() > self.limits.events):
                self._open.popitem(last=False)
        return known[1]

    def _events(self) -> int:
        return sum(record.events for _, record in self._open.values())

    def names(self) -> list[str]:
        """Names in the list, newest first: a name begins with the time."""
        try:
            found = self._folder.names("[!.]*")
        except OSError:
            return []
        return [name for name in reversed(found) if self._holds_record(name)]

    def _holds_record(self, name: str) -> bool:
        try:
            return self._folder.folder(name).file("run.json").exists()
        except RecordError:
            return False  # a file or a link, not a folder

    def entries(self) -> list[RecordEntry]:
        return [self.entry(name) for name in self.names()[:MOST_RUNS]]

    def entry(self, name: str) -> RecordEntry:
        """A record's line in the list, also if the record cannot be opened."""
        try:
            folder = self.find(name)
            stamp = _stamp(folder)
            known = self._entries.get(name)
            if known is not None and known[0] == stamp and known[1].state != "running":
                return known[1]
            entry, _ = entry_of(name, folder)
            self._entries[name] = (stamp, entry)
            return entry
        except PacelineError as error:
            return RecordEntry(name=name, problem=error.message)


def entry_of(name: str, folder: Folder) -> tuple[RecordEntry, Run]:
    """A record's line in a list, and its run. Raises RecordError if the record cannot be opened."""
    run = read_bounded_run(folder)
    found, problem = Figures(), ""
    try:
        # Only the end of a long run's steps is read if it did not keep its figures, so that it does not slow the list.
        found = kept_figures(folder) or figures(_ends(run, folder))
    except RecordError as error:
        problem = error.message
    origin = read_origin(folder)
    entry = RecordEntry(
        name=name,
        verb=run.verb,
        script=run.script,
        started=run.started or None,
        workers=_workers(run),
        mods=tuple(run.mods),
        steps=found.steps or (run.outcome.steps if run.outcome else None),
        samples_per_s=found.samples_per_s or None,
        figures=found,
        labels=read_labels(folder),
        command=origin.line if origin else "",
        batch=found.batch or None,
        loss=found.last_loss,
        seconds=run.outcome.seconds if run.outcome else None,
        state=state_of(run, folder),
        traced=any(folder.names(pattern) for pattern in TRACES),
        result=headline(run, folder),
        problem=problem,
    )
    return entry, run


def _ends(run: Run, folder: Folder) -> dict[int, Columns]:
    """The last steps of every worker."""
    ranks = sorted({worker.rank for worker in run.workers})
    each = MOST_STEPS // max(len(ranks), 1)
    return {rank: columns_of(read_tail(folder.file(f"steps.rank{rank}.jsonl"), each)[0]) for rank in ranks}


def _workers(run: Run) -> int | None:
    asked = run.settings.get("workers")
    return len(run.workers) or (asked if isinstance(asked, int) else None)


def _stamp(folder: Folder) -> object:
    """A value that changes when a file of the record changes."""
    found = []
    for pattern in _FILES:
        for name in folder.names(pattern):
            stat = folder.file(name).stat()
            found.append((name, stat and (stat.st_ino, stat.st_mtime_ns, stat.st_size)))
    return tuple(found)
