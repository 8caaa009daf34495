"""What the profiler found of a script, as the place where `tune` begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import RecordError
from paceline.record import read_run
from paceline.trials.tune.candidates import MORE, Candidate, name_of
from paceline.trials.tune.preset import whole_path


def advised(script: str, *, module: bool, records: Path) -> tuple[list[str], Path | None]:
    """The mods that the newest findings of this script ask for, most gain first, and the record that they are in."""
    ours = whole_path(script, module=module)
    found = [path.parent for path in records.glob("*/findings.json") if _script_of(path.parent) == ours]
    if not found:
        return [], None
    from paceline.advise import mods_of, read_findings  # a large library, for a small question

    newest = max(found, key=lambda folder: (folder / "findings.json").stat().st_mtime)
    return mods_of(read_findings(newest)), newest


def put_first(tried: Sequence[Candidate], mods: Sequence[str]) -> list[Candidate]:
    """The candidates, those that the mods name first and in their order; with the value that was found best, where
    findings name one. A mod that is not among them is not tried."""
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
