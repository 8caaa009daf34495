"""A finding: what a rule says of a record. And `findings.json`, where a record keeps them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.folder import unwritable
from paceline.record.inside import Folder
from paceline.record.private import write_file


class Figure(msgspec.Struct, frozen=True):
    """One number that a finding rests on. Times are seconds, sizes bytes; shares have no unit."""

    name: str
    value: float | int | str
    unit: str = ""


class Finding(msgspec.Struct, kw_only=True):
    """What is wrong, the numbers that show it, and what mends it.

    `predicted_gain` is a factor of samples a second: 1.5 is half as fast again. It is None where a rule cannot say.
    `measured_gain` is what a trial gave, None where there was none; then `proof` says why, or what the trial said.
    """

    rule: str
    title: str
    evidence: list[Figure]
    advice: str  # what to type
    mod: str = ""  # as people type it; empty where no mod mends it
    predicted_gain: float | None = None
    how: str = ""  # the prediction was computed
    where: str = ""  # the script's line, file:line
    measured_gain: float | None = None
    proof: str = ""


def findings_path(folder: Path) -> Path:
    return Path(folder) / "findings.json"


def write_findings(folder: Path, found: list[Finding]) -> None:
    """RecordError where the folder cannot be written."""
    path = findings_path(folder)
    try:
        write_file(path, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    except OSError as error:
        raise unwritable(path, error) from error


def read_findings(folder: Path | Folder) -> list[Finding]:
    """None where a record has none. RecordError where the file is damaged."""
    path = Folder.of(folder).file("findings.json")
    try:
        return msgspec.json.decode(path.read(), type=list[Finding])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error
