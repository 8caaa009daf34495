"""The report of a pipeline: the cost of each stage as a table, and the bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.data.meters import Meter
from paceline.record.pipelines import PipelineReport, StageReport

if TYPE_CHECKING:
    from paceline.data.execution.runtime import Runtime

KEEPS_UP = 0.05  # share of the consumer's time below which waiting for the pipeline does not matter


class Report(PipelineReport, kw_only=True):
    """The figures of a pipeline so far. Prints as a table; `msgspec.to_builtins` returns plain dictionaries and
    lists."""

    def __str__(self) -> str:
        rows = [("stage", "where", "at a time", "ms each", "core busy", "ready")]
        for stage in self.stages:
            ready = "–" if stage.ready is None else f"{stage.ready} of {stage.room}"
            busy = f"{stage.busy:.0%}" if stage.results else "–"
            each = f"{stage.seconds * 1e3:.3g}" if stage.results else "–"
            rows.append((stage.name, stage.where, str(max(1, stage.parallel)), each, busy, ready))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                cell.ljust(width) if n < 2 else cell.rjust(width) for n, (cell, width) in enumerate(pairs)
            ).rstrip()
            for pairs in (list(zip(row, widths, strict=True)) for row in rows)
        ]
        for stage in self.stages:
            lines += [f"{stage.name}: {note}" for note in stage.notes[-2:]]
        if self.lost:
            lines.append(f"left out: {self.lost}")
        lines.append(f"The consumer waited {self.waited:.0%} of its time. The bottleneck: {self.bottleneck}.")
        return "\n".join(lines)


def report_of(runtime: Runtime) -> Report:
    stages = [_stage(meter) for meter in runtime.meters]
    clock = runtime.clock
    whole = clock.waited + clock.used
    waited = clock.waited / whole if whole else 0.0
    known = [stage for stage in stages if stage.capacity]
    name = ""
    if not known or waited < KEEPS_UP:
        bottleneck = "the consumer; the pipeline keeps up" if whole else "not known yet"
    else:
        slowest = min(known, key=lambda stage: stage.capacity)
        name, bottleneck = slowest.name, f"{slowest.name}, {slowest.capacity:.3g} results a second at most"
    return Report(
        stages=stages,
        results=clock.results,
        waited=waited,
        bottleneck=bottleneck,
        lost=runtime.losses.count,
        slowest=name,
        seconds=whole,
    )


def _stage(meter: Meter) -> StageReport:
    passes_on = meter.name == "prefetch"  # its time is that of the stages before it
    ready: Any = meter.fill or (None, None)
    each = 0.0 if passes_on else meter.each
    return StageReport(
        name=meter.name,
        where=meter.kind or "here",
        parallel=meter.parallel,
        results=0 if passes_on else meter.jobs,
        seconds=each,
        busy=min(1.0, meter.cpu / meter.work) if meter.work else 0.0,
        capacity=max(1, meter.parallel) / each if each else 0.0,
        ready=ready[0],
        room=ready[1],
        notes=[*meter.notes],
    )
