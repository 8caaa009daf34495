"""Decides which pages have something to show for a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from paceline.errors import RecordError
from paceline.reports.wording import say
from paceline.units import count
from paceline.view.records.library import Library, RecordEntry
from paceline.view.records.reading import FROM_ELSEWHERE
from paceline.view.records.record import Opened

MOST_COMPARED = 60  # records to choose from: the newest
SERIES = ("scale", "sweep", "fit", "tune", "converge", "bandwidth", "plan")  # verbs that run a series of trials


def has_steps(record: Opened) -> bool:
    try:
        return record.steps.frame.height > 0
    except RecordError:
        return True  # so that the iterations page reports the damaged file


def has_traces(record: Opened) -> bool:
    return bool(record.trace_paths)


def has_ops(record: Opened) -> bool:
    """Whether there are ops in a trace. A trace that was made elsewhere may have none; once it was read, that is
    known."""
    if record.run.verb != FROM_ELSEWHERE or record.read_traces is None:
        return has_traces(record)
    return any(trace.host.height for trace in record.read_traces)


def is_series(record: Opened) -> bool:
    """Whether this is the record of a series. The record of one of its trials names the same verb, and has workers."""
    return record.run.verb in SERIES and not record.run.workers


def uses_devices(record: Opened) -> bool:
    """Whether a worker has a GPU, or may have had one: a trace that was made elsewhere names no workers."""
    if record.run.verb == FROM_ELSEWHERE and record.read_traces is not None:
        return any(trace.has_device for trace in record.read_traces)
    return not record.run.workers or any(worker.gpus for worker in record.run.workers)


def has_stacks(record: Opened) -> bool:
    """Whether Python stacks were traced, which tell the modules' times."""
    asked = record.run.settings.get("profile")
    return isinstance(asked, dict) and asked.get("stack") is True


def comparable(library: Library, record: Opened) -> list[tuple[str, str]]:
    """Records to compare this one with, and words for each: trials of the same series, or the newest records, first
    those of the same verb and script."""
    series, _, _ = record.name.rpartition("/trials/")
    names = library.open(series).trials if series else library.names()
    found = [library.entry(name) for name in names[:MOST_COMPARED] if name != record.name]
    found = [entry for entry in found if entry.samples_per_s or (is_series(record) and entry.verb == record.run.verb)]
    found.sort(key=lambda entry: (entry.verb, entry.script) != (record.run.verb, record.run.script))
    return [(entry.name, entry_in_words(entry)) for entry in found]


def entry_in_words(entry: RecordEntry) -> str:
    """`cnn.py on 2 workers, 3 min ago`; a record's own name first, if it has one."""
    what = entry.labels.name or (PurePath(entry.script).name if entry.verb != "bandwidth" else entry.verb)
    if "/trials/" in entry.name:
        what = entry.name.rpartition("/")[2]
    on = f" on {count(entry.workers, 'worker')}" if entry.workers else ""
    verb = f"{entry.verb} " if entry.verb not in ("run", "bandwidth") else ""
    return f"{verb}{what}{on}, {say(entry.started, 'ago')}"


# By page key, the first part of the page's address. A page that is not listed can always be shown.
_SHOWS: dict[str, Callable[[Opened], bool]] = {
    "live": lambda record: record.state == "running",
    "iterations": has_steps,
    "ranks": lambda record: len(record.ranks) > 1 and has_steps(record),
    "pipelines": lambda record: bool(record.folder.names("pipelines.rank*.jsonl")),
    "servers": lambda record: bool(record.folder.names("server.*.json")),
    "timeline": lambda record: bool(record.trace_paths or record.spans_paths),
    "devices": lambda record: record.has_samples or has_ops(record),
    "topology": lambda record: bool(record.run.topology),
    "kernels": lambda record: has_traces(record) and uses_devices(record),
    "waits": lambda record: has_traces(record) and (uses_devices(record) or has_stacks(record)),
    "logs": lambda record: any(record.folder.file(f"log.rank{rank}.txt").exists() for rank in record.ranks[:1]),
    **dict.fromkeys(("ops", "op-types", "memory"), has_ops),
}


def shows(record: Opened, page: str) -> bool:
    """Whether this page has something to show for the record."""
    return _SHOWS.get(page, lambda record: True)(record)
