"""The report of a pipeline: the cost of each stage as a table, and the bottleneck; also in the record of the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paceline.data.meters import Meter
from paceline.record.pipelines import PipelineReport, Reported, StageReport, pipelines_path
from paceline.record.writer import StepWriter
from paceline.script.seams import api

if TYPE_CHECKING:
    from paceline.data.execution.engines import Runtime
    from paceline.script.seams.stage import Stage


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


# -- in the record of the run -----------------------------------------------------------------------------------------


MOST = 64  # pipelines that are recorded, because a script may make a new pipeline each epoch
SPACING = 1.0  # seconds between two lines of a pipeline; the run's end writes the figures since then


class _Followed:
    """One pipeline. Holds the pipeline's figures until the run ends, but not the pipeline itself."""

    def __init__(self, number: int, title: str, runtime: Runtime) -> None:
        self.number, self.title, self.runtime = number, title, runtime
        self.results = 0  # results when a line was last written
        self.written: float | None = None


class Keeper:
    """Writes the reports of all pipelines of one worker."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._followed: list[_Followed] = []
        self._writer: StepWriter | None = None
        api.before_leaving(self.close)

    def begins(self, runtime: Runtime, title: str) -> None:
        """A loop over a pipeline begins."""
        if len(self._followed) < MOST and self._find(runtime) is None:
            self._followed.append(_Followed(len(self._followed), title, runtime))

    def ended(self, runtime: Runtime) -> None:
        """A loop ended, or the script left it early."""
        one = self._find(runtime)
        if one is not None and (one.written is None or time.monotonic() - one.written > SPACING):
            self._write(one)

    def close(self) -> None:
        """The run ends, possibly in the middle of a loop."""
        for one in self._followed:
            self._write(one)
        if self._writer is not None:
            self._writer.close()

    def _find(self, runtime: Runtime) -> _Followed | None:
        return next((one for one in self._followed if one.runtime is runtime), None)

    def _write(self, one: _Followed) -> None:
        folder = api.folder()
        if folder is None or one.runtime.clock.results == one.results:
            return
        if self._writer is None:
            self._writer = StepWriter(pipelines_path(folder, self.stage.group.rank))
        one.results, one.written = one.runtime.clock.results, time.monotonic()
        self._writer.append(
            Reported(
                pipeline=one.number,
                title=one.title,
                step=self.stage.pulse.step,
                at=time.time(),
                report=report_of(one.runtime),
            )
        )


_keeper: Keeper | None = None


def keeper() -> Keeper | None:
    """The keeper of this worker's run; None outside a run."""
    global _keeper
    stage = api.current()
    if stage is None or api.folder() is None:
        return None
    if _keeper is None or _keeper.stage is not stage:
        _keeper = Keeper(stage)
    return _keeper
