"""A finding: the result of a rule on a record. Also reads and writes `findings.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline import units
from paceline.errors import RecordError
from paceline.record.inside import Folder
from paceline.record.writer import write_document


class Figure(msgspec.Struct, frozen=True):
    """One number of a finding's evidence. Times are in seconds, sizes in bytes; shares have no unit."""

    name: str
    value: float | int | str
    unit: str = ""


class Finding(msgspec.Struct, kw_only=True):
    """What is wrong, the numbers that show it, and how to fix it.

    `predicted_gain` is a factor of throughput: 1.5 is half as fast again. It is None if the rule cannot predict one.
    `measured_gain` is the median of its trials, `measured_low` and `measured_high` are their extremes; None without a
    trial. `tied`: the trials overlap with those of the unmodified script, so that no gain was measured. `proof` says
    what the trials found, or why there are none.
    """

    rule: str
    title: str
    evidence: list[Figure]
    advice: str  # what to type
    mod: str = ""  # as typed on the command line; empty if no mod fixes it
    others: list[str] = []  # mods that may fix it better: a trial measures all, and the best becomes `mod`
    predicted_gain: float | None = None
    how: str = ""  # how the prediction was computed
    where: str = ""  # the script's line, file:line
    command: str = ""  # complete, to be copied; empty if there is none, or if the script is not known
    numbers: str = ""  # whether the command changes the script's numbers, a sentence; empty if not
    measured_gain: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    tied: bool = False
    proof: str = ""


def in_sentences(advice: str, numbers: str) -> str:
    """The advice, and whether the numbers change."""
    return f"{advice.rstrip('.')}. {numbers}" if advice and numbers else advice or numbers


def findings_path(folder: Path) -> Path:
    return Path(folder) / "findings.json"


def write_findings(folder: Path, found: list[Finding]) -> None:
    """If the folder cannot be written, see `record.stopping`."""
    write_document(findings_path(folder), found)


def read_findings(folder: Path | Folder) -> list[Finding]:
    """The findings of a record; an empty list if it has none. RecordError if the file is damaged."""
    path = Folder.of(folder).file("findings.json")
    try:
        return msgspec.json.decode(path.read(), type=list[Finding])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(f"{path} cannot be read: {error}.") from error


def mods_of(found: Sequence[Finding]) -> list[str]:
    """The mods that findings recommend, largest predicted gain first, each name once. A starting point for `tune`."""
    mods: dict[str, str] = {}
    for finding in sorted(found, key=lambda one: -(one.predicted_gain or 0.0)):
        if finding.mod:
            mods.setdefault(finding.mod.partition("=")[0], finding.mod)
    return list(mods.values())


# -- wording ----------------------------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """0.123 is `12 %`."""
    return units.percent(share, digits=0)


def command(mod: str) -> str:
    """The command line for a mod."""
    name, _, value = mod.partition("=")
    return f"paceline run -n {value} …" if name == "workers" else f"paceline run --mod {mod} …"
