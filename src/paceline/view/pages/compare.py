"""The page that compares runs: their figures, why one is slower, settings that differ, and overlaid curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.charts.chart import Axis, Bars, Chart
from paceline.record.about.origin import Origin
from paceline.record.phases import EVALUATION, OTHER, PHASES
from paceline.reports.report import Column, Row, Sentence, Words
from paceline.tables.figures import Figures
from paceline.tables.trace.time_limit import within
from paceline.tables.why_slower import compare, difference_of_ops
from paceline.view.records.headline import headline
from paceline.view.records.record import Opened, measure
from paceline.view.ui.blocks import Block, Curves, Page
from paceline.view.ui.curves import OVER, Compared, lettered, overlaid, overlaid_results
from paceline.view.ui.grid import Grid
from paceline.view.ui.links import href
from paceline.view.ui.what_was_run import command

MOST = 5000  # rows of ops
BY_CHANCE = ("seed",)  # settings that differ from run to run without being asked to
SHOWN = 8  # settings named in words; the table has all of them


def build(records: Sequence[Opened], asked: Mapping[str, str] | None = None) -> Page:
    """Compares at least two runs. The first one is what the others are compared with."""
    over = (asked or {}).get("over", "step")
    over = over if over in OVER else "step"
    runs = lettered(records)
    measures = [measure(record) for record in records]
    changed = differing(records)
    blocks: list[Block] = [_runs(runs, measures), *_words(runs, measures, changed)]
    if any(each.step_time for each in measures):
        blocks.append(_split(runs, measures))
    charts = [*overlaid(runs, over), *overlaid_results(runs)]
    if charts:
        blocks.append(Curves(title="Curves", charts=charts, over=over, choices=OVER))
    else:
        blocks.append(Sentence("These records have no curves in common.", "warn"))
    if changed:
        blocks.append(_settings(runs, changed))
    else:
        blocks.append(Sentence("The settings of these runs are the same."))
    if any(each.step_time for each in measures):
        blocks.append(_parts(runs, measures))
    if len(records) == 2 and all(record.trace_paths for record in records):
        with within(records[0].limits.seconds, "Comparing the ops", records[0].limits.more_time):
            blocks.append(_ops(records[0], records[1]))
    return Page(title=f"{len(runs)} runs" if len(runs) > 2 else "Two runs", blocks=blocks)


def _address(row: Row) -> str | None:
    return href("run", str(row["name"]))


def _runs(runs: Sequence[Compared], measures: Sequence[Figures]) -> Grid:
    first = measures[0]
    rows: list[dict[str, Any]] = []
    for run, each in zip(runs, measures, strict=True):
        rows.append(
            {
                "letter": run.letter,
                "name": run.record.name,
                "state": run.record.state,
                "result": headline(run.record.run, run.record.folder),
                "workers": len(run.record.run.workers) or None,
                "batch": each.batch or None,
                "samples_per_s": each.samples_per_s or None,
                "times": each.samples_per_s / first.samples_per_s if first.samples_per_s else None,
                "step_time": each.step_time or None,
                "loss": each.last_loss,
                "steps": each.steps or None,
                "memory": each.memory or None,
                "command": command(run.record),
            }
        )
    return Grid(
        name="compared",
        title="Runs",
        columns=(
            Column("letter", "run", "Letter of the run on this page."),
            Column("name", "record", "Name of the record's folder.", link=_address),
            Column("samples_per_s", "samples/s", "After warm-up, rank 0.", "rate"),
            Column("times", "against A", "samples/s divided by samples/s of A.", "times"),
            Column("step_time", "step time", "After warm-up, rank 0.", "seconds"),
            Column("state", "state", "From run.json's outcome.", narrow=False),
            Column("result", "result", "The main result of the record.", wrap=True),
            Column("batch", "batch", "Samples of a step, over all workers.", "count", narrow=False),
            Column("workers", "workers", "Processes that ran the script.", "count", narrow=False),
            Column("loss", "last loss", "Last recorded loss, as the script computed it.", "number"),
            Column("steps", "steps", "Optimizer steps of rank 0.", "count", narrow=False),
            Column("memory", "memory", "Highest peak of a worker.", "bytes", narrow=False),
            Column("command", "command", "As typed.", wrap=True, spare=True),
        ),
        rows=rows,
    )


def _words(
    runs: Sequence[Compared], measures: Sequence[Figures], changed: Sequence[tuple[str, list[str]]]
) -> list[Block]:
    """For each run but the first: whether it is slower than the first, and why."""
    blocks: list[Block] = []
    if not measures[0].step_time:
        return []
    for place in range(1, len(runs)):
        names = (runs[0].letter, runs[place].letter)
        if not measures[place].step_time:
            continue
        found = compare(measures[0], measures[place], names)
        differ = [
            (name, values[0], values[place])
            for name, values in changed
            if values[0] != values[place] and name not in BY_CHANCE
        ]
        told = [f"{name} ({before or '–'} → {after or '–'})" for name, before, after in differ[:SHOWN]]
        if told:
            more = f", and {len(differ) - SHOWN} more" if len(differ) > SHOWN else ""
            settings = f"Settings that differ: {', '.join(told)}{more}."
        else:
            settings = "Their settings are the same, so the cause is in the code, the data or the machine."
        faster = found.clear and found.times is not None and found.times > 1
        how = "faster" if faster else "slower"
        title = f"Why is {names[1]} {how} than {names[0]}?" if found.clear else f"Is {names[1]} slower than {names[0]}?"
        blocks.append(
            Words(
                title,
                [*found.sentences, settings],
                "From the steps after warm-up: samples/s of the median block of steps, and the phases' shares. A "
                "difference counts if the slowest and the fastest block of the two runs do not overlap.",
            )
        )
    return blocks


def _split(runs: Sequence[Compared], measures: Sequence[Figures]) -> Chart:
    timed = [(run, each) for run, each in zip(runs, measures, strict=True) if each.step_time]
    return Chart(
        name="split",
        title="Where the time of a step went",
        caption="Share of each phase over workers, after warm-up, times the step time of the run.",
        x=Axis(title="time per step", time=True),
        y=Axis(kind="category", reverse=True),
        series=[
            Bars(
                name=part,
                x=[each.step[part] for _, each in timed],
                y=[run.letter for run, _ in timed],
                colour=part,
                horizontal=True,
            )
            for part in PHASES
            if part != EVALUATION and any(each.step[part] > 0 for _, each in timed)
        ],
        stacked=True,
        height=130 + 40 * len(timed),
        wide=True,
    )


def _settings(runs: Sequence[Compared], changed: Sequence[tuple[str, list[str]]]) -> Grid:
    return Grid(
        name="settings",
        title="Settings that differ",
        columns=(
            Column("setting", "setting", "Option, or fact of run.json."),
            *(Column(run.letter, run.letter, f"Value in {run.record.name}.", wrap=len(runs) < 8) for run in runs),
        ),
        rows=[
            {"setting": name} | {run.letter: value or None for run, value in zip(runs, values, strict=True)}
            for name, values in changed
        ],
    )


def _parts(runs: Sequence[Compared], measures: Sequence[Figures]) -> Grid:
    timed = [(run, each) for run, each in zip(runs, measures, strict=True) if each.step_time]
    how = "seconds per step, over ranks and steps after warm-up; evaluation is beside the total."
    two = len(timed) == 2
    rows: list[dict[str, Any]] = []
    for part in ("total", *PHASES):
        row: dict[str, Any] = {"part": part}
        told = [each.measured[part] for _, each in timed]
        row |= {run.letter: took for (run, _), took in zip(timed, told, strict=True)}
        known = part != OTHER or all(each.split for _, each in timed)  # it holds what was not timed
        if two and known and told[0] is not None and told[1] is not None:
            row |= {"change": told[1] - told[0], "ratio": told[1] / told[0] if told[0] else None}
        rows.append(row)
    columns = [
        Column("part", "part", "Part of a step, as each worker times it."),
        *(Column(run.letter, run.letter, f"{run.record.name}: {how}", "seconds", optional=True) for run, _ in timed),
    ]
    if two:
        one, other = (run.letter for run, _ in timed)
        columns += [
            _change(one, other),
            Column("ratio", f"{other} / {one}", f"Time of {other} divided by time of {one}.", "times"),
        ]
    return Grid(name="parts", title="Parts of a step", columns=columns, rows=rows)


def _change(one: str, other: str) -> Column:
    how = f"Time of {other} minus time of {one}; negative means that {other} is faster."
    return Column("change", f"{other} − {one}", how, "seconds")


def _ops(before: Opened, after: Opened) -> Grid:
    how = "Mean per step and rank, over the traced steps of"
    return Grid(
        name="ops",
        title="Ops that changed",
        columns=(
            Column("name", "op", "Name of the op in the traces."),
            _change("A", "B"),
            *(
                Column(
                    f"{key}_{when}",
                    f"{letter}: {key}",
                    f"{how} {letter}.",
                    "number" if key == "calls" else "seconds",
                    optional=key == "device",
                )
                for key in ("device", "host", "calls")
                for when, letter in (("before", "A"), ("after", "B"))
            ),
        ),
        rows=difference_of_ops(before.tables, after.tables).head(MOST).to_dicts(),
    )


# -- what differs -----------------------------------------------------------------------------------------------------


MOST_DIFFERENCES = 200  # rows
# Settings that say where something is kept, not how the run works.
_PLACES = ("record", "folder", "scratch", "report", "token")


def settings_of(record: Opened) -> dict[str, str]:
    """Everything that can make runs differ, by name, in words."""
    run = record.run
    found: dict[str, Any] = {
        "script": run.script,
        "arguments": " ".join(run.arguments),
        "workers": len(run.workers) or None,
        "mods": ", ".join(run.mods) or "none",
        "strategy": run.strategy,
        "view": run.outcome.view if run.outcome else "",
        "host": ", ".join(sorted({worker.host for worker in run.workers})),
        "GPUs": sum(bool(worker.gpus) for worker in run.workers),
        "threads of a worker": run.workers[0].threads if run.workers else None,
        "paceline": run.paceline,
        **run.versions,
        **_origin(record.origin),
    }
    for name, value in _flat(run.settings):
        if name not in ("script", "arguments", "workers", "mods", "strategy") and not name.endswith(_PLACES):
            found.setdefault(name.replace("_", " "), value)
    return {name: _say(value) for name, value in found.items()}


def _origin(origin: Origin | None) -> dict[str, Any]:
    """The code, the packages and the variables."""
    if origin is None:
        return {}
    tree = origin.git
    return {
        "git commit": tree.commit[:12] if tree is not None else None,
        "changed files": tree.changed if tree is not None else None,
        "script's content": origin.script_sha256[:12],
        **{f"package {name}": version for name, version in origin.packages.items()},
        **{f"variable {name}": value for name, value in origin.environment.items()},
    }


def differing(records: Sequence[Opened]) -> list[tuple[str, list[str]]]:
    """Names of the settings whose values differ, each with one value per record."""
    told = [settings_of(record) for record in records]
    names = dict.fromkeys(name for each in told for name in each)
    rows = [(name, [each.get(name, "") for each in told]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1][:MOST_DIFFERENCES]


def _flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and len(before) < 100:
            found += _flat(value, f"{before}{name} ")
        else:
            found.append((f"{before}{name}", value))
    return found


def _say(value: Any) -> str:
    if value is None or value == "" or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_say, value))
    return str(value)
