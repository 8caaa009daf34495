"""The page that lists all records, with a choice of runs to compare."""

from __future__ import annotations

from pathlib import Path, PurePath

from paceline.reports.report import Column, Row, Sentence
from paceline.units import rate
from paceline.view.records.library import MOST_RUNS, Library, RecordEntry
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.grid import Grid
from paceline.view.ui.links import href

NAME = "Name of the record, or its script; below it tags and mods. Hover: the record's folder."
SPEED = "Samples of the whole batch divided by step time, after warm-up: the figure that `paceline run` prints."


def _address(row: Row) -> str | None:
    if row["problem"]:
        return None
    return href(first_page(str(row["verb"]), str(row["state"])), str(row["name"]))


def first_page(verb: str, state: str) -> str:
    """The page that a record's link in the list opens."""
    if state == "running" and verb in ("run", "profile"):
        return "live"
    return "run"


COLUMNS = (
    Column("name", "run", NAME, link=_address, wrap=True, text="what", under="under"),
    Column("started", "began", "Start of the launcher. Hover: local time.", "ago"),
    Column("verb", "verb", "Verb that made the record.", chip=True),
    Column("state", "state", "From run.json's outcome; without an outcome, running while files grow.", chip=True),
    Column(
        "result",
        "result",
        "The gain of a tune, the knee of a sweep, speed-up and efficiency of a scale, the accuracy of a converge, "
        "the findings of a profile, the last numbers of paceline.log, or why the run failed; otherwise samples/s.",
        wrap=True,
    ),
    Column("loss", "loss", "Last recorded loss; the line is the loss over the run.", "number", curve="curve"),
    Column("workers", "workers", "Number of processes that ran the script.", "count", narrow=False),
    Column("samples_per_s", "samples/s", SPEED, "rate", narrow=False),
    Column("seconds", "took", "From the launch to the end of the last worker.", "seconds", narrow=False),
    Column("script", "script", "Path of the script, as typed.", spare=True),
    Column("mods", "mods", "Mods, as given with --mod.", spare=True),
    Column("steps", "steps", "Number of the last optimizer step of rank 0.", "count", spare=True),
    Column("labels", "name and tags", "Labels of the record.", spare=True),
    Column("note", "note", "Note on the record: paceline run --note.", spare=True),
)


def build(library: Library) -> Page:
    entries = library.entries()
    blocks: list[Block] = [
        Grid(
            name="runs",
            title=f"{len(entries):,} record{'' if len(entries) == 1 else 's'}",
            columns=COLUMNS,
            rows=[_row(entry) for entry in sorted(entries, key=lambda entry: entry.state != "running")],
            empty="No records yet. Make one: paceline run -n 2 train.py",
            choose="name",
            filters=("verb", "state"),
            whole=True,
        )
    ]
    broken = [entry for entry in entries if entry.problem]
    if broken:
        more = f" And {len(broken) - 3} more." if len(broken) > 3 else ""
        blocks.append(Sentence(" ".join(entry.problem for entry in broken[:3]) + more, "warn"))
    if len(entries) == MOST_RUNS:
        blocks.append(Sentence(f"Only the newest {MOST_RUNS:,} records are listed."))
    return Page(title="Runs", lead=_relative(library.root), blocks=blocks)


def _relative(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _row(entry: RecordEntry) -> Row:
    speed = entry.samples_per_s
    # `bandwidth` runs a script of our own.
    script = "" if entry.verb == "bandwidth" else entry.script
    tags = [f"#{tag}" for tag in entry.labels.tags]
    named = [PurePath(script).name] if entry.labels.name and script else []
    return {
        "name": entry.name,
        "what": entry.labels.name or PurePath(script).name or entry.verb or entry.name,
        "under": " · ".join([*named, *tags, *entry.mods]),
        "verb": entry.verb,
        "script": script,
        "result": entry.problem or entry.result or (f"{rate(speed)} samples/s" if speed else ""),
        "state": entry.state,
        "labels": " ".join([entry.labels.name, *tags]).strip(),
        "note": entry.labels.note,
        "workers": entry.workers,
        "mods": ", ".join(entry.mods),
        "samples_per_s": entry.samples_per_s,
        "steps": entry.steps or None,
        "loss": entry.loss,
        "curve": entry.figures.curve,
        "seconds": entry.seconds,
        "started": entry.started,
        "problem": entry.problem,
    }
