"""What each stage of an input pipeline cost, as its worker saw it: `pipelines.rankR.jsonl`.

A line each time that a loop over a pipeline has ended, and one at the run's end. Figures are of all that the pipeline
has done so far: the last line of each counts. A run that uses no pipeline of `paceline.data` has no such file.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 64 << 20  # bytes


class StageReport(msgspec.Struct, kw_only=True):
    """One stage: seconds of work for a result, how much of it a core was busy, and where it is done."""

    name: str
    where: str
    parallel: int
    results: int
    seconds: float
    busy: float
    capacity: float  # results a second that it can give; 0: not known
    ready: int | None = None  # results that lie ready, of how many that may
    room: int | None = None
    notes: list[str] = []


class PipelineReport(msgspec.Struct, kw_only=True):
    """Of all that a pipeline has done so far."""

    stages: list[StageReport]
    results: int
    waited: float  # of the consumer's time that it waited for results
    bottleneck: str  # in words
    lost: int
    slowest: str = ""  # the stage that the consumer waits for; empty where it does not, or where nobody knows
    seconds: float = 0.0  # of the consumer, waiting for results and using them

    @property
    def slowest_stage(self) -> StageReport | None:
        return next((stage for stage in self.stages if self.slowest and stage.name == self.slowest), None)


class Reported(msgspec.Struct, kw_only=True):
    """One line."""

    pipeline: int  # in the order in which the script first looped over them
    title: str
    step: int  # optimizer steps made before it
    at: float  # unix time
    report: PipelineReport


def pipelines_path(folder: Path, rank: int) -> Path:
    return Path(folder) / f"pipelines.rank{rank}.jsonl"


def read_pipelines(folder: Path | Folder, rank: int) -> list[Reported]:
    """What was last said of each pipeline; none where there was none. A torn line ends it: readers do without."""
    try:
        lines = Folder.of(folder).file(f"pipelines.rank{rank}.jsonl").read(LARGEST).splitlines()
    except (OSError, RecordError):
        return []
    last: dict[int, Reported] = {}
    for line in lines:
        try:
            told = msgspec.json.decode(line, type=Reported)
        except (msgspec.DecodeError, RecursionError):
            break
        last[told.pipeline] = told
    return [last[number] for number in sorted(last)]


def most_waited_for(reported: list[Reported]) -> Reported | None:
    """The pipeline that the script waited longest for: of one for training and one for testing, the one that matters.
    None where there is none, or nobody waited."""
    longest = max(reported, key=lambda one: one.report.waited * one.report.seconds, default=None)
    return longest if longest is not None and longest.report.waited * longest.report.seconds else None
