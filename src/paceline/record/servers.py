"""The files `server.N.json`: what each parameter server of a run did, with the staleness of its updates."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder
from paceline.record.writer import write_document

LARGEST = 16 << 20  # bytes


class ServerReport(msgspec.Struct, kw_only=True):
    """One server, so far."""

    server: int
    updates: int
    bytes: int  # of parameters
    staleness: dict[int, int]  # staleness → updates: how many other updates were made since the worker's pull
    duplicates: int = 0  # pushes that came twice, and were applied once
    dropped: int = 0  # pushes that came after their round (backup workers)
    lost: int = 0  # updates lost in the last restart
    starts: int = 1
    refused: int = 0  # connections without the run's keys
    malformed: int = 0  # messages


def write_report(folder: Path, report: ServerReport) -> None:
    """Replaces one server's report."""
    write_document(folder / f"server.{report.server}.json", report)


def read_reports(folder: Path | Folder) -> list[ServerReport]:
    """The reports of all servers, in their order; damaged ones are left out."""
    here, found = Folder.of(folder), []
    for name in here.names("server.*.json"):
        try:
            found.append(msgspec.json.decode(here.file(name).read(LARGEST), type=ServerReport))
        except (OSError, RecordError, msgspec.DecodeError):
            continue
    return sorted(found, key=lambda report: report.server)
