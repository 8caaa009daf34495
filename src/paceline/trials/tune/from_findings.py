"""Reads the findings of an earlier profile, so that `tune` tries their mods first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from paceline.advise.finding import mods_of, read_findings
from paceline.errors import RecordError
from paceline.record import read_run
from paceline.trials.tune.candidates import MORE, Candidate, name_of
from paceline.trials.tune.preset import whole_path


def advised(script: str, *, module: bool, records: Path) -> tuple[list[str], Path | None]:
    """The mods of this script's newest findings, largest gain first, and the record of these findings."""
    ours = whole_path(script, module=module)
    found = [path.parent for path in records.glob("*/findings.json") if _script_of(path.parent) == ours]
    if not found:
        return [], None
    newest = max(found, key=lambda folder: (folder / "findings.json").stat().st_mtime)
    return mods_of(read_findings(newest)), newest


def put_first(tried: Sequence[Candidate], mods: Sequence[str]) -> list[Candidate]:
    """The candidates, with those of `mods` first and in that order. If a mod names a value, the candidate gets that
    value. A mod that is not among the candidates is not added."""
    by_name = {candidate.name: candidate for candidate in reversed(tried)}
    known = {candidate.mod for candidate in tried}
    first = [
        dataclasses.replace(by_name[name_of(mod)], mod=mod, order=place - len(mods))
        for place, mod in enumerate(mods)
        if name_of(mod) in by_name and (name_of(mod) != MORE or mod in known)
    ]
    named = {candidate.mod for candidate in first}
    return [*first, *(candidate for candidate in tried if candidate.mod not in named)]


def _script_of(folder: Path) -> str:
    try:
        run = read_run(folder)
    except RecordError:
        return ""
    return whole_path(run.script, module=bool(run.settings.get("module")))
