"""Writes a pipeline's report to the record of the run that uses the pipeline: see `record.pipelines`.

Every worker writes its own file, and waits for no other worker. Outside a Paceline run nothing is written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from paceline.data.metrics.report import report_of
from paceline.record.pipelines import Reported, pipelines_path
from paceline.record.writer import StepWriter
from paceline.script.seams import api

if TYPE_CHECKING:
    from paceline.data.execution.runtime import Runtime
    from paceline.script.seams.stage import Stage

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
