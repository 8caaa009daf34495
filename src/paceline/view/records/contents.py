"""Decides which pages have something to show for a record."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import RecordError
from paceline.view.records.record import Opened

SERIES = ("scale", "sweep", "tune")  # verbs whose verdict has a page


def has_steps(record: Opened) -> bool:
    try:
        return record.steps.frame.height > 0
    except RecordError:
        return True  # so that the iterations page reports the damaged file


def has_traces(record: Opened) -> bool:
    return bool(record.trace_paths)


def _has_verdict(record: Opened, *verbs: str) -> bool:
    return record.run.verb in verbs and record.folder.file("verdict.json").exists()


# By page key, the first part of the page's address. A page that is not listed can always be shown.
_SHOWS: dict[str, Callable[[Opened], bool]] = {
    "live": lambda record: record.state == "running",
    "results": lambda record: _has_verdict(record, *SERIES),
    "communication": lambda record: _has_verdict(record, "bandwidth"),
    "iterations": has_steps,
    "ranks": lambda record: len(record.ranks) > 1 and has_steps(record),
    "servers": lambda record: bool(record.folder.names("server.*.json")),
    "timeline": lambda record: bool(record.trace_paths or record.spans_paths),
    "devices": lambda record: record.has_samples or has_traces(record),
    "topology": lambda record: bool(record.run.topology),
    "logs": lambda record: any(record.folder.file(f"log.rank{rank}.txt").exists() for rank in record.ranks[:1]),
    **dict.fromkeys(("ops", "op-types", "kernels", "waits", "memory"), has_traces),
}


def shows(record: Opened, page: str) -> bool:
    """Whether this page has something to show for the record."""
    return _SHOWS.get(page, lambda record: True)(record)
