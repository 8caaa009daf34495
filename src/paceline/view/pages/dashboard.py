"""The overview page of a run: speed, the parts of a step, findings."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.record.phases import EVALUATION, PHASES
from paceline.tables.figures import Figures
from paceline.units import percent, rate, seconds, size
from paceline.view.pages.series import results
from paceline.view.records.contents import is_series
from paceline.view.records.measures import measure
from paceline.view.records.reading import FROM_ELSEWHERE
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Findings, Note, Page, SplitBlock, Tile, Tiles
from paceline.view.ui.critical_batch import critical_tiles, noise_chart
from paceline.view.ui.findings import read_findings
from paceline.view.ui.links import href
from paceline.view.ui.logged import logged_charts
from paceline.view.ui.run_parts import SLOWEST, STEP_TIME, step_charts
from paceline.view.ui.trials import trials
from paceline.view.ui.utilisation import utilisation
from paceline.view.ui.what_was_run import command, facts, outcome_notes
from paceline.view.ui.wording import say


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    if is_series(record):
        return results.build(record)
    if record.run.verb == FROM_ELSEWHERE:
        return _from_elsewhere(record)
    measures = measure(record)
    blocks: list[Block] = outcome_notes(record)
    if record.state == "running":
        blocks.append(
            Note(text="This run is in progress.", tone="live", links=[("Follow the run", href("live", record.name))])
        )
    blocks.append(Tiles(_tiles(record, measures)))
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
                total=measures.step["total"],
            )
        ]
    found = read_findings(record)
    if found is not None:
        blocks.append(Findings(found))
    if record.steps.frame.height:
        blocks += step_charts(record, measures)
    blocks += noise_chart(record)
    blocks += logged_charts(record)
    blocks += utilisation(record)
    blocks += trials(record)
    blocks.append(facts(record, open=not record.steps.frame.height))
    if record.steps.partly:
        blocks.append(Note(text="The run is long: these figures leave out its first steps.", tone="warn"))
    return Page(
        title=record.labels.name or record.name.rpartition("/")[2],
        lead=command(record),
        lead_is_command=True,
        blocks=blocks,
    )


def _from_elsewhere(record: Opened) -> Page:
    """A trace is all that is known of such a run."""
    note = Note(
        text="This trace was taken elsewhere: nothing else is known of its run.",
        links=[("Time line", href("timeline", record.name)), ("Ops", href("ops", record.name))],
    )
    return Page(title=record.name, lead=f"paceline view {record.run.script}", blocks=[note])


def _tiles(record: Opened, measures: Figures) -> list[Tile]:
    run, outcome = record.run, record.run.outcome
    tiles = [
        Tile(
            label="workers",
            value=str(len(run.workers) or run.settings.get("workers", "–")),
            how="Processes that ran the script. The time is from the launch to the end of the last worker.",
            detail=f"took {seconds(outcome.seconds)}" if outcome else "",
        ),
    ]
    if measures.samples_per_s:
        tiles += [
            Tile(
                label="samples/s",
                value=rate(measures.samples_per_s),
                how="Samples of the whole batch divided by step time.",
            ),
        ]
    if measures.step_time:
        tiles.append(
            Tile(
                label="step time",
                value=say(measures.step_time, "seconds"),
                how=f"{STEP_TIME} {measures.warm_up} warm-up steps.",
            ),
        )
    if measures.steps:
        tiles.append(
            Tile(
                label="steps",
                value=f"{measures.steps:,}",
                how="Optimizer steps of rank 0.",
                detail=f"{measures.samples:,} samples",
            )
        )
    if measures.last_loss is not None:
        tiles.append(
            Tile(
                label="loss",
                value=say(measures.last_loss, "number"),
                how="As the script computed it for the whole batch: first and last recorded step.",
                detail=f"from {say(measures.first_loss, 'number')}",
            )
        )
    if measures.memory:
        where = "of the GPU" if any(worker.gpus for worker in run.workers) else "of the host"
        tiles.append(
            Tile(
                label="memory",
                value=size(measures.memory),
                how=f"Peak memory {where} that one worker used, as the worker counted after each step.",
            )
        )
    tiles += critical_tiles(record)
    tiles += _slowest(measures)
    return tiles


def _evaluation(measures: Figures) -> str:
    took = measures.step[EVALUATION]
    return f" Evaluation takes {seconds(took)} per step beside that." if took else ""


EVEN = 0.1  # share of a step: workers that differ by less are called even


def _slowest(measures: Figures) -> list[Tile]:
    first = measures.slowest
    if first is None:
        return []
    spread = f"spread {percent(first.share)} of a step"
    if not first.slow:
        return [
            Tile(
                label="slowest worker",
                value="none",
                how=SLOWEST,
                detail=f"no worker is late all the time: {spread}",
                tone="good" if first.share < EVEN else "",
            ),
        ]
    return [
        Tile(
            label="slowest worker",
            value=f"rank {first.rank}",
            how=SLOWEST,
            detail=f"{seconds(first.behind)} per step behind, since step {first.since:,}, in {first.cause}: {spread}",
            tone="warn",
        )
    ]
