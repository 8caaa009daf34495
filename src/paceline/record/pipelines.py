"""The file `pipelines.rankR.jsonl`: the cost of each stage of an input pipeline on one worker.

A worker writes a line whenever a loop over a pipeline ends, and one at the end of the run. The numbers are totals since
the pipeline's start, so only the last line of each pipeline counts. A run without `paceline.data` has no such file.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 64 << 20  # bytes


class StageReport(msgspec.Struct, kw_only=True):
    """One stage: seconds of work per result, the share of them that kept a core busy, and where the work is done."""

    name: str
    where: str
    parallel: int
    results: int
    seconds: float
    busy: float
    capacity: float  # results per second that the stage can deliver; 0: not known
    ready: int | None = None  # results in the stage's buffer
    room: int | None = None  # size of that buffer, in results
    notes: list[str] = []


class PipelineReport(msgspec.Struct, kw_only=True):
    """Totals of a pipeline since its start."""

    stages: list[StageReport]
    results: int
    waited: float  # share of the consumer's time that it waited for results
    bottleneck: str  # as a sentence
    lost: int  # samples that were skipped
    slowest: str = ""  # the stage that the consumer waits for; empty if it does not wait, or if the stage is unknown
    seconds: float = 0.0  # the consumer's time, waiting for results and using them

    @property
    def slowest_stage(self) -> StageReport | None:
        return next((stage for stage in self.stages if self.slowest and stage.name == self.slowest), None)


class Reported(msgspec.Struct, kw_only=True):
    """One line of the file."""

    pipeline: int  # number of the pipeline, in order of the script's first loop over each
    title: str
    step: int  # number of optimizer steps before the line
    at: float  # unix time
    report: PipelineReport


def pipelines_path(folder: Path, rank: int) -> Path:
    return Path(folder) / f"pipelines.rank{rank}.jsonl"


def read_pipelines(folder: Path | Folder, rank: int) -> list[Reported]:
    """The last line of each pipeline; none if there is no pipeline. Reading stops at a torn line, without an error."""
    try:
        reported = Folder.of(folder).file(f"pipelines.rank{rank}.jsonl").lines(Reported, LARGEST)
    except (OSError, RecordError):
        return []
    last = {told.pipeline: told for told in reported}
    return [last[number] for number in sorted(last)]


def most_waited_for(reported: list[Reported]) -> Reported | None:
    """The pipeline that the script waited for the longest, for example the training one and not the test one. None if
    there is no pipeline, or the script never waited."""
    longest = max(reported, key=lambda one: one.report.waited * one.report.seconds, default=None)
    return longest if longest is not None and longest.report.waited * longest.report.seconds else None
