"""The result of a trial: throughput over the steady steps, memory and losses, or the reason why there is none.

A failure is a valid result: running out of memory ends a sweep, and `tune` drops a mod that fails. This module only
reads a trial's record; it neither plans nor shows trials.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from statistics import mode

import msgspec

from paceline.record import read_steps
from paceline.record.facts import Facts, read_facts
from paceline.record.folder import last_lines
from paceline.record.schema import Outcome, Step
from paceline.settings import RunSettings
from paceline.tables.figures import columns_of, figures


class Status(StrEnum):
    """How a trial ended."""

    OK = "ok"
    MEMORY = "memory"  # the trial ran out of memory
    UNSUPPORTED = "unsupported"  # a mod refused the script
    TOO_SHORT = "too short"  # too few steps to measure, or none
    NOT_FINITE = "not finite"  # the loss is NaN or infinite from the first step on
    FAILED = "failed"
    BUDGET = "budget"  # the budget ended: the trial was not run, or was stopped
    INTERRUPTED = "interrupted"

    @property
    def broken(self) -> bool:
        """The script itself failed, so that another batch or mod would fail too."""
        return self in (Status.FAILED, Status.NOT_FINITE)


NEEDED = 5  # fewest steady steps for a throughput

_NO_MEMORY = (
    "out of memory",
    "outofmemory",
    "memoryerror",
    "bad_alloc",
    "allocate memory",  # after "can't" or "cannot"
    "alloc_failed",  # cuBLAS, cuDNN
    "insufficient shared memory",
    "could not create a memory object",  # oneDNN
    "is killed by signal: killed",  # a process of a DataLoader
    "was killed by sigkill",  # most often by the kernel, for lack of memory
)
_REFUSALS = ("UsageError", "ScriptError", "NotSplitError")


class Measured(msgspec.Struct, kw_only=True):
    """The result of one trial. If the status is not OK, `message` gives the reason in one line, and there is no
    throughput."""

    name: str  # unique in its record
    mods: list[str]
    workers: int
    status: Status
    message: str = ""
    samples_per_s: float = 0.0  # as in `Figures`, and the next two
    low: float = 0.0
    high: float = 0.0
    batch: int = 0  # samples a step
    steps: int = 0
    warm_up: int = 0
    memory: int = 0  # peak bytes of the worker with the highest peak
    losses: list[float | None] = []  # None: no loss, or not finite
    idle: dict[str, str] = {}  # mods that were not in force, and why
    facts: Facts | None = None  # of the first worker, if they were asked for
    step: dict[str, float] = {}  # as in `Figures`
    seconds: float = 0.0  # of the whole trial
    record: str = ""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


def read_measured(name: str, settings: RunSettings, folder: Path, outcome: Outcome) -> Measured:
    """Reads the record of a trial that ran with these settings and ended with this outcome."""
    by_rank = [read_steps(folder, rank) for rank in range(settings.workers)]
    first = by_rank[0] if by_rank else []
    measured = Measured(
        name=name,
        mods=list(settings.mods),
        workers=settings.workers,
        status=Status.OK,
        batch=mode(step.samples for step in first) if first else 0,
        steps=len(first),
        memory=max((steps[-1].memory for steps in by_rank if steps), default=0),
        losses=[step.loss for step in first],
        idle=outcome.not_in_force,
        facts=read_facts(folder, 0),
        seconds=outcome.seconds,
        record=str(folder),
    )
    measured.status, measured.message = _status(outcome, first, folder, bool(settings.mods))
    if not measured.ok:
        return measured
    found = figures({rank: columns_of(steps) for rank, steps in enumerate(by_rank)})
    measured.warm_up = found.warm_up
    if found.counted < NEEDED or not found.samples_per_s:
        measured.status = Status.TOO_SHORT
        measured.message = (
            f"the script ended after {len(first)} step{'s' * (len(first) > 1)}, {found.counted} of them after "
            f"warm-up: {NEEDED} are needed"
        )
        return measured
    measured.samples_per_s, measured.low, measured.high = found.samples_per_s, found.low, found.high
    measured.step = found.step
    return measured


def _status(outcome: Outcome, steps: Sequence[Step], folder: Path, modded: bool) -> tuple[Status, str]:
    if outcome.interrupted:
        return Status.INTERRUPTED, outcome.cause
    if outcome.exit_code:
        if _ran_out_of_memory(outcome, folder):
            tried = re.search(r"ried to allocate ([\d.]+ \w+)", outcome.cause)
            why = f"tried to allocate {tried[1]}" if tried else _one_line(outcome)
            return Status.MEMORY, f"out of memory: {why}{_who(outcome)}"
        if outcome.error in _REFUSALS and modded:
            return Status.UNSUPPORTED, outcome.cause.partition(": ")[2]
        return Status.FAILED, _one_line(outcome) + _who(outcome)
    if not steps:
        return Status.TOO_SHORT, "the script made no optimizer step: there is nothing to measure"
    if not steps[0].finite:
        return Status.NOT_FINITE, "the loss is not a finite number (NaN or infinite) from the first step on"
    return Status.OK, ""


def _ran_out_of_memory(outcome: Outcome, folder: Path) -> bool:
    said = outcome.cause
    if not outcome.error:  # killed, or ended by native code: only the end of the log has the reason
        said += "\n".join(last_lines(folder, outcome.failed_rank or 0))
    said = said.lower()
    return any(sign in said for sign in _NO_MEMORY)


def _one_line(outcome: Outcome) -> str:
    return (outcome.cause.strip() or f"exit code {outcome.exit_code}").splitlines()[0].removeprefix("raised ")


def _who(outcome: Outcome) -> str:
    return "" if outcome.failed_rank is None else f" (worker {outcome.failed_rank})"
