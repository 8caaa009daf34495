"""The types of a record's files, as msgspec structs.

`run.json` holds one `Run`; `steps.rankR.jsonl` holds one `Step` per line. Times are seconds, sizes bytes, rates per
second.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA = 1


class Step(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One optimizer step of one worker. The parts add up to `total`, which leaves `check` out. All parts but
    `communication` are the worker's own work, so `total - communication` is how long the worker's peers waited for it.
    Of short steps on a GPU, only every tenth is `split`: in the other steps only `total`, `evaluation` and `check` are
    known, and the parts are zero."""

    step: int
    at: float  # unix time at the end of the step
    samples: int  # of the global batch
    total: float
    data: float  # waiting for the loader
    forward: float
    backward: float
    communication: float  # exposed: waiting for collectives without overlapping computation
    optimizer: float
    evaluation: float = 0.0  # calls in eval mode since the previous step
    other: float = 0.0
    check: float = 0.0  # Paceline's own checks since the previous step, beside `total`
    loss: float | None = None
    finite: bool = True  # False: the loss was NaN or infinite, which JSON cannot write
    split: bool = True
    traced: bool = False  # under the profiler, or while it wrote its trace: the step took longer than it would have
    noise: float | None = None  # the gradient noise scale so far, if measured
    memory: int = 0  # peak bytes so far: of the GPU's memory, or of the host's without a GPU


class ClockOffset(msgspec.Struct, kw_only=True):
    """The clock of a host against the launcher's: ahead by `offset` seconds at the launcher's unix time `at`, and by
    `drift` seconds more each second. `error`: the largest error of the offset during the run that the readings
    allow."""

    offset: float
    drift: float
    error: float
    at: float
    readings: int

    def ahead(self, at: float) -> float:
        """Seconds by which the host's clock is ahead at this unix time."""
        return self.offset + self.drift * (at - self.at)


class WorkerInfo(msgspec.Struct, kw_only=True):
    """One worker, as the launcher started it."""

    rank: int
    host: str
    pid: int
    cores: list[int]
    threads: int
    gpus: list[str] = []
    environment: dict[str, str] = {}  # variables that the launcher set
    clock: ClockOffset | None = None  # of its host; None: the launcher's own


class FailureKind(StrEnum):
    """How a worker failed, the likeliest cause of a run's end first."""

    KILLED = "killed"  # by a signal that the launcher did not send
    STALLED = "stalled"
    RAISED = "raised"
    EXITED = "exited"  # sys.exit with a code
    LATE = "late"  # past the limit of time that the run was given
    CONSEQUENCE = "consequence"  # a collective failed


class Outcome(msgspec.Struct, kw_only=True):
    """How a run ended. `failed_rank`, `kind`, `error` and `cause` describe the first worker that failed."""

    exit_code: int
    seconds: float
    interrupted: bool = False
    failed_rank: int | None = None
    kind: FailureKind | None = None
    error: str = ""  # the exception's type, where it raised one
    cause: str = ""
    message: str = ""  # the failure report: rank, host, cause, last lines
    steps: int = 0
    view: str = ""
    notices: list[str] = []
    evaluated_after: float = 0.0  # seconds of evaluation after the last step
    unrecorded: str = ""  # why the record is incomplete: a write to it failed, and the run went on
    not_in_force: dict[str, str] = {}  # mods that were asked for and did nothing, each with its notice


class Run(msgspec.Struct, kw_only=True):
    """The content of `run.json`: what was run, how, and how it ended."""

    schema: int = SCHEMA
    paceline: str
    verb: str
    script: str
    arguments: list[str]
    settings: dict[str, Any]
    mods: list[str] = []
    strategy: str = "mirrored"
    versions: dict[str, str] = {}
    topology: dict[str, Any] = {}
    workers: list[WorkerInfo] = []
    started: float = 0.0
    outcome: Outcome | None = None  # None: still running, or killed
