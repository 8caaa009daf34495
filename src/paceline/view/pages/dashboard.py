"""The overview page of a run: speed, the parts of a step, findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from paceline.advise.commands import to_type
from paceline.advise.finding import in_sentences
from paceline.advise.verdict import verdict
from paceline.errors import RecordError
from paceline.record.logged import read_logged
from paceline.record.phases import EVALUATION, PHASES
from paceline.reports.figure_text import slowest
from paceline.reports.report import Figure, Sentence
from paceline.reports.wording import say
from paceline.tables.figures import Figures, columns_in
from paceline.units import rate, seconds, size
from paceline.view.pages import series
from paceline.view.records.contents import is_series, shows, uses_devices
from paceline.view.records.reading import FROM_ELSEWHERE
from paceline.view.records.record import Opened, measure
from paceline.view.ui.blocks import Block, Curves, FindingBlock, Findings, Page, SplitBlock, Tiles, VerdictBlock
from paceline.view.ui.critical_batch import critical_tiles, noise_chart
from paceline.view.ui.curves import OVER, lettered, overlaid
from paceline.view.ui.links import href
from paceline.view.ui.run_parts import STEP_TIME
from paceline.view.ui.trials import trials
from paceline.view.ui.utilisation import utilisation
from paceline.view.ui.what_was_run import command, facts, outcome_notes


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    if is_series(record):
        return series.build(record)
    if record.run.verb == FROM_ELSEWHERE:
        return _from_elsewhere(record)
    measures = measure(record)
    frame, shown = record.steps.frame, read_findings(record)
    first = columns_in(frame.filter(pl.col("rank") == pl.col("rank").min())) if frame.height else {}
    state = record.state
    standing = [_as_finding(each) for each in shown or []]
    found = verdict(record.run, measures, next(iter(first.values()), None), standing, running=state == "running")
    blocks: list[Block] = [
        VerdictBlock(
            sentence=found.sentence, command=found.command, about=found.about, tone="bad" if state == "failed" else ""
        )
    ]
    if state == "running":
        blocks.append(Sentence("", "live", links=[("Follow the run", href("live", record.name))]))
    blocks.append(Tiles(_tiles(record, measures)))
    blocks += outcome_notes(record)
    if record.steps.frame.height:
        blocks += [
            SplitBlock(
                title="Where the time of a step went",
                how=f"Share of each phase over workers, after {measures.warm_up} warm-up steps, times the step time. "
                "Each worker times its own phases at the seams; communication counts only where no other work overlaps "
                f"it.{_evaluation(measures)}",
                parts=[
                    (part, measures.step[part], part)
                    for part in PHASES
                    if part != EVALUATION and measures.step[part] > 0
                ],
                missing=[part for part in PHASES if measures.measured[part] is None],
                total=measures.step["total"],
            )
        ]
    if shown is not None:
        blocks.append(Findings(shown))
    blocks += _curves(record, asked)
    blocks += noise_chart(record)
    blocks += utilisation(record)
    blocks += trials(record)
    blocks.append(facts(record, open=not record.steps.frame.height))
    if record.steps.partly:
        blocks.append(Sentence("The run is long: these figures leave out its first steps.", "warn"))
    return Page(
        title=record.labels.name or Path(record.run.script).name,
        lead=command(record),
        lead_is_command=True,
        blocks=blocks,
    )


def _as_finding(block: FindingBlock) -> dict[str, object]:
    """As the verdict reads findings; a command that needs a change of the script first is none to type next."""
    return {
        "title": block.title,
        "command": "" if block.after else block.command,
        "predicted_gain": block.predicted,
        "measured_gain": block.measured,
        "tied": block.tied,
    }


def _curves(record: Opened, asked: Mapping[str, str]) -> list[Block]:
    """Loss, throughput, step time and what the script logged, with the controls that comparing runs has."""
    blocks: list[Block] = []
    try:
        read_logged(record.folder)
    except (RecordError, OSError, msgspec.DecodeError) as error:
        blocks.append(Sentence(f"{record.folder.file('logged.jsonl')} cannot be read: {error}.", "bad"))
    over = asked.get("over", "step")
    over = over if over in OVER else "step"
    run = replace(lettered([record])[0], letter="")
    charts = overlaid([run], over)
    return [*blocks, Curves(title="Over the run", charts=charts, over=over, choices=OVER)] if charts else blocks


def _from_elsewhere(record: Opened) -> Page:
    """A trace is all that is known of such a run."""
    note = Sentence(
        "This trace was taken elsewhere: nothing else is known of its run.",
        links=[("Time line", href("timeline", record.name)), ("Ops", href("ops", record.name))],
    )
    return Page(title=record.name, lead=f"paceline view {record.run.script}", blocks=[note])


def _tiles(record: Opened, measures: Figures) -> list[Figure]:
    run, outcome = record.run, record.run.outcome
    tiles = [
        Figure(
            "workers",
            str(len(run.workers) or run.settings.get("workers", "–")),
            "Processes that ran the script. The time is from the launch to the end of the last worker.",
            f"took {seconds(outcome.seconds)}" if outcome else "",
        ),
    ]
    if measures.samples_per_s:
        tiles += [
            Figure("samples/s", rate(measures.samples_per_s), "Samples of the whole batch per second.", large=True),
        ]
    if measures.step_time:
        tiles.append(
            Figure("step time", say(measures.step_time, "seconds"), f"{STEP_TIME} {measures.warm_up} warm-up steps."),
        )
    if measures.steps:
        tiles.append(
            Figure(
                "steps",
                f"{measures.steps:,}",
                "Optimizer steps of rank 0.",
                f"{measures.samples:,} samples" if measures.samples else "",
            )
        )
    if measures.last_loss is not None:
        tiles.append(
            Figure(
                "loss",
                say(measures.last_loss, "number"),
                "As the script computed it for the whole batch: first and last recorded step.",
                f"from {say(measures.first_loss, 'number')}",
                large=True,
            )
        )
    if measures.memory:
        where = "of the GPU" if any(worker.gpus for worker in run.workers) else "of the host"
        tiles.append(
            Figure(
                "memory",
                size(measures.memory),
                f"Peak memory {where} that one worker used, as the worker counted after each step.",
            )
        )
    tiles += critical_tiles(record)
    tiles += slowest(measures)
    return sorted(tiles, key=lambda tile: not tile.large)


def _evaluation(measures: Figures) -> str:
    took = measures.step[EVALUATION]
    return f" Evaluation takes {seconds(took)} per step beside that." if took else ""


# -- findings ---------------------------------------------------------------------------------------------------------


MOST = 200
# Pages, and the rules whose evidence they show. If a record lacks the page, the pages of OTHERWISE follow.
EVIDENCE = {
    "iterations": ("input_bound", "varying_steps", "validation", "checkpoints"),
    "ranks": ("imbalance",),
    "timeline": ("exposed_communication", "gloo_on_gpus", "data_parallel"),
    "waits": ("waiting_lines",),
    "kernels": ("small_kernels", "pageable_copies", "pointwise", "optimizer_step"),
    "ops": ("mixed_precision", "tf32", "channels_last", "cudnn_benchmark", "slow_attention"),
    "memory": ("memory_unused", "memory_full"),
    "devices": ("device_idle",),
    "topology": ("unused_devices", "threads"),
}
PAGE_OF = {rule: page for page, rules in EVIDENCE.items() for rule in rules}
OTHERWISE = ("devices", "op-types", "iterations")
TITLES = {"timeline": "time line", "op-types": "op types"}


def read_findings(record: Opened) -> list[FindingBlock] | None:
    """The findings, or None if the rules did not run."""
    if record.findings is None:
        return None
    return [_finding_block(finding, record) for finding in record.findings[:MOST]]


def _finding_block(finding: Mapping[str, Any], record: Opened) -> FindingBlock:
    rule = str(finding.get("rule", ""))
    page = _evidence_page(rule, record)
    mod = finding.get("mod")
    advice, typed, after = to_type(record.run, str(mod) if mod else "", str(finding.get("advice") or ""))
    if finding.get("command"):
        advice = in_sentences(advice, str(finding.get("numbers") or ""))
        typed, after = str(finding["command"]), False
    return FindingBlock(
        rule=rule,
        title=str(finding.get("title", rule)),
        evidence=_figures(finding.get("evidence")),
        mod=str(mod) if mod else "",
        advice=advice,
        command=typed,
        after=after,
        predicted=_gain(finding.get("predicted_gain")),
        how=str(finding.get("how") or "computed from the tables of this run"),
        measured=_gain(finding.get("measured_gain")),
        tied=finding.get("tied") is True,
        proof=str(finding.get("proof") or ""),
        where=str(finding.get("where") or ""),
        href=href(page, record.name) if page else "",
        page=TITLES.get(page, page),
    )


def _evidence_page(rule: str, record: Opened) -> str:
    pages = (PAGE_OF[rule], *OTHERWISE) if rule in PAGE_OF else OTHERWISE
    # Without GPUs the page of devices shows the load of the machine, which is no evidence of a rule.
    return next((page for page in pages if shows(record, page) and (page != "devices" or uses_devices(record))), "")


def _figures(evidence: Any) -> list[tuple[str, str]]:
    """Evidence as pairs of name and value. A value of an unexpected type becomes text."""
    if isinstance(evidence, Mapping):
        evidence = [{"name": name, "value": value} for name, value in evidence.items()]
    if not isinstance(evidence, list | tuple):
        evidence = [] if evidence is None else [evidence]
    found = []
    for each in evidence[:50]:
        if isinstance(each, Mapping):
            unit = each.get("unit", "")
            found.append(
                (str(each.get("name", ""))[:300], _value(each.get("value"), unit if isinstance(unit, str) else ""))
            )
        else:
            found.append(("", str(each)[:1000]))
    return found


def _value(value: Any, unit: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)[:1000]
    if unit == "s":
        return say(value, "seconds")
    if unit == "bytes":
        return say(value, "bytes")
    if not unit and isinstance(value, float) and 0 <= value <= 1:
        return say(value, "share")
    return f"{say(value, 'number')} {unit}".strip()


def _gain(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
