"""The page of input pipelines: the stages of each, how full their buffers are, the bottleneck, and lost samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.charts.chart import Axis, Bars, Chart
from paceline.record.pipelines import PipelineReport, Reported, StageReport, most_waited_for, read_pipelines
from paceline.reports.report import Column, Figure, Sentence
from paceline.units import count, percent, rate
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page, Tiles
from paceline.view.ui.grid import Grid

WAITS = 0.05  # of the script's time: from here on, the pipeline is worth a warning
RANKS = 64
MOST = 16  # pipelines of a rank


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    by_rank = {rank: read_pipelines(record.folder, rank)[:MOST] for rank in record.ranks[:RANKS]}
    first = next((told for told in by_rank.values() if told), [])
    main = most_waited_for(first) or next(iter(first), None)
    blocks: list[Block] = []
    if main is not None:
        blocks.append(Tiles(_tiles(main, by_rank)))
    blocks += _notes(by_rank)
    blocks += [chart for told in first for chart in _work(told, alone=len(first) == 1)]
    blocks.append(_grid(by_rank))
    return Page(title="Input pipelines", blocks=blocks)


def _tiles(main: Reported, by_rank: Mapping[int, list[Reported]]) -> list[Figure]:
    report = main.report
    lost = sum(told.report.lost for all_told in by_rank.values() for told in all_told)
    tiles = [
        Figure(
            "script waited",
            percent(report.waited),
            "Share of the script's time in the loop that it waited for the pipeline's next result: rank 0, since "
            "the pipeline's start.",
            f"for {_name(main)}",
            tone="warn" if report.waited > WAITS else "good",
        ),
        Figure(
            "bottleneck",
            report.slowest or "none",
            "The stage that the script waits for; none if the pipeline keeps up.",
            _most(report.slowest_stage),
            tone="warn" if report.slowest else "good",
        ),
    ]
    if report.seconds > 0:
        tiles.append(
            Figure(
                "delivered",
                f"{rate(report.results / report.seconds)}/s",
                "Results of the pipeline, which are batches after a batch stage, divided by the loop's time.",
                count(report.results, "result"),
            )
        )
    tiles.append(
        Figure(
            "lost samples",
            f"{lost:,}",
            "Samples that were skipped because of an error (on_error='skip'), over all pipelines and ranks.",
            tone="warn" if lost else "good",
        )
    )
    return tiles


def _most(stage: StageReport | None) -> str:
    return f"{rate(stage.capacity)} results/s at most" if stage is not None and stage.capacity else ""


def _name(told: Reported) -> str:
    return f"pipeline {told.pipeline + 1}: {told.title}" if told.title else f"pipeline {told.pipeline + 1}"


def _notes(by_rank: Mapping[int, list[Reported]]) -> list[Block]:
    blocks: list[Block] = []
    lost: dict[str, dict[int, int]] = {}
    for rank, all_told in by_rank.items():
        for told in all_told:
            if told.report.lost:
                lost.setdefault(_name(told), {})[rank] = told.report.lost
    for name, by in lost.items():
        where = ", ".join(f"{number:,} on rank {rank}" for rank, number in list(by.items())[:8])
        text = f"{name} skipped {count(sum(by.values()), 'sample')} because of errors: {where}."
        blocks.append(Sentence(text[0].upper() + text[1:], "warn", "The workers' logs have the errors."))
    for told in next((told for told in by_rank.values() if told), []):
        report = told.report
        said = f"{_name(told)}: the script waited {percent(report.waited)} of its time"
        blocks.append(
            Sentence(
                f"{said[0].upper()}{said[1:]}. Bottleneck: {report.bottleneck}.",
                "warn" if report.waited > WAITS else "good",
            )
        )
    return blocks[:20]


def _work(told: Reported, *, alone: bool) -> list[Chart]:
    """Seconds of work of each stage for one result of the pipeline."""
    report = told.report
    stages = [stage for stage in report.stages if stage.seconds > 0]
    if not stages or not report.results:
        return []
    return [
        Chart(
            name=f"work-{told.pipeline}",
            title=f"Work for one result: {_name(told)}",
            caption="Seconds of work of each stage for one result of the pipeline, divided by the number of threads or "
            "processes that share it. Rank 0, mean since the pipeline's start.",
            x=Axis(title="ms", zero=True),
            y=Axis(kind="category", reverse=True),
            series=[
                Bars(
                    name="work",
                    x=[_per_result(stage, report) * 1e3 for stage in stages],
                    y=[stage.name for stage in stages],
                    colour="data",
                    horizontal=True,
                )
            ],
            height=max(160, 90 + 34 * len(stages)),
            wide=alone,
        )
    ]


def _per_result(stage: StageReport, report: PipelineReport) -> float:
    return stage.seconds * stage.results / report.results / max(stage.parallel, 1) if report.results else 0.0


def _grid(by_rank: Mapping[int, list[Reported]]) -> Grid:
    rows: list[dict[str, Any]] = []
    for rank, all_told in by_rank.items():
        for told in all_told:
            for stage in told.report.stages:
                filled = stage.ready is not None and stage.room
                rows.append(
                    {
                        "pipeline": _name(told).removeprefix("pipeline "),
                        "rank": rank,
                        "stage": stage.name,
                        "where": stage.where,
                        "parallel": stage.parallel or 1,
                        "results": stage.results,
                        "seconds": stage.seconds or None,
                        "busy": stage.busy if stage.seconds else None,
                        "capacity": stage.capacity or None,
                        "fill": (stage.ready or 0) / stage.room if filled and stage.room else None,
                        "room": stage.room,
                        "notes": "; ".join(stage.notes),
                        "slowest": bool(told.report.slowest) and stage.name == told.report.slowest,
                    }
                )
    columns = (
        Column("pipeline", "pipeline", "In order of the script's first loop over each."),
        Column("rank", "rank", "Rank of the worker.", "count"),
        Column("stage", "stage", "Stage of the pipeline, as the script wrote it."),
        Column("where", "where", "Whether the script's thread, threads or processes do the work."),
        Column("parallel", "at a time", "Results that are made at the same time.", "count"),
        Column("results", "results", "Results since the pipeline's start.", "count"),
        Column("seconds", "each", "Mean time of work for one result of the stage.", "seconds"),
        Column("busy", "core busy", "Share of that time that kept a core busy.", "share", bar=True),
        Column("capacity", "most/s", "Results per second that the stage can deliver.", "rate"),
        Column(
            "fill",
            "fill",
            "Results ready in the stage's buffer at its last report, as a share of the buffer. Empty means that "
            "the next stage waits for this one.",
            "share",
            bar=True,
        ),
        Column("room", "buffer", "Size of that buffer, in results.", "count"),
        Column("notes", "notes", "What the stage chose for itself, and why.", wrap=True, narrow=False),
    )
    return Grid(
        name="stages",
        title="Stages",
        about="The marked stage is the bottleneck.",
        columns=columns,
        rows=rows,
        mark="slowest",
    )
