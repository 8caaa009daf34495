"""The trials of a series as a table: what each trial ran, in words, and what became of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paceline.errors import PacelineError
from paceline.record.schema import Run
from paceline.reports.report import Column, Row
from paceline.units import count
from paceline.view.records.library import RecordEntry, entry_of
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block
from paceline.view.ui.grid import Grid
from paceline.view.ui.links import href

MOST = 500
PARTS = {"devices": "copies of one GPU, and pairs of GPUs", "workers": "pairs of workers, and collectives"}
_ROUND = re.compile(r"\.r(\d+)$|^round(\d+)-")
_SEED = re.compile(r"\.seed(\d+)")


def trials(record: Opened) -> list[Block]:
    """One row per trial, with a link to its record. Empty if the series ran none."""
    names = record.trials[:MOST]
    if not names:
        return []
    rows = sorted((_row(record, name) for name in names), key=lambda row: row["started"] or 0.0)
    columns = (
        Column("trial", "trial", "What the trial ran. Opens the trial's record.", link=_address),
        Column("state", "state", "From the outcome in the trial's run.json."),
        Column("workers", "workers", "Number of processes that ran the script.", "count"),
        Column("batch", "batch", "Samples of a step, over all workers.", "count"),
        Column("samples_per_s", "samples/s", "Samples divided by step time: median of rank 0's last steps.", "rate"),
        Column("steps", "steps", "Optimizer steps of rank 0.", "count", optional=True),
        Column("loss", "last loss", "Last recorded loss, as the script computed it.", "number"),
        Column("seconds", "took", "From the launch to the end of the last worker.", "seconds"),
        Column("why", "why", "Why the trial failed.", wrap=True),
    )
    return [Grid(name="trials", title=count(len(record.trials), "trial"), columns=columns, rows=rows)]


def _address(row: Row) -> str | None:
    return href("run", str(row["name"])) if row["state"] != "damaged" else None


def _row(record: Opened, name: str) -> dict[str, Any]:
    folder = name.rpartition("/")[2]
    try:
        entry, run = entry_of(name, record.folder.folder("trials", folder))
    except PacelineError as error:
        entry, run = RecordEntry(name=name, problem=error.message), None
    outcome = run.outcome if run else None
    return {
        "name": name,
        "started": entry.started,
        "trial": in_words(record.run.verb, folder, run),
        "state": entry.state,
        "workers": entry.workers,
        "batch": entry.batch,
        "samples_per_s": entry.samples_per_s,
        "steps": entry.steps,
        "loss": entry.loss,
        "seconds": entry.seconds,
        "why": entry.problem or (outcome.cause if outcome else ""),
    }


def in_words(verb: str, folder: str, run: Run | None) -> str:
    """What a trial ran: `2 workers, round 1`, `batch ×4, round 2`, `precision=bf16 and compile, seed 0`."""
    found = _ROUND.search(folder)
    round_ = f"round {found[1] or found[2]}" if found else ""
    seed = _SEED.search(folder)
    plain = _SEED.sub("", _ROUND.sub("", folder))
    if run is None:
        what = plain
    elif verb == "scale":
        workers = len(run.workers) or run.settings.get("workers")
        what = count(workers, "worker") if isinstance(workers, int) else plain
    elif verb == "bandwidth":
        what = PARTS.get(plain, plain)
    elif verb == "converge":
        what = {"oneworker": "one worker", "naive": "no technique"}.get(plain, _mods(run.mods) or plain)
    else:
        what = _mods(run.mods) or "the script as it is"
    return ", ".join(part for part in (what, f"seed {seed[1]}" if seed else "", round_) if part)


def _mods(mods: Sequence[str]) -> str:
    """Mods as a list in words; `emulate=8` is left out, because all trials of a series but one have it."""
    said = [_mod(mod) for mod in mods if not mod.startswith("emulate=")]
    return f"{', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else "".join(said)


def _mod(mod: str) -> str:
    name, _, value = mod.partition("=")
    value = value.removesuffix(":none")
    if name == "batch":
        return f"batch ×{value[1:]}" if value.startswith("x") else f"batch {value}"
    return f"{name}={value}" if value else name
