"""The state of a candidate during a search, and how its results are told."""

from __future__ import annotations

import dataclasses

from paceline.trials.core.result import Measured, Status
from paceline.trials.tune.candidates import Candidate
from paceline.trials.tune.loss_guard import Compared
from paceline.trials.tune.verdict import Problem, Row


@dataclasses.dataclass(slots=True, eq=False)
class CandidateStanding:
    """The state of a candidate during the search."""

    candidate: Candidate
    row: Row
    gain: float | None = None  # on top of the last set that it was tried on
    fruitless: int = 0  # number of trials without a gain
    out: bool = False  # refused, unsupported, or failed


def failure(measured: Measured) -> str:
    """Why a trial has no throughput, in a few words."""
    return "out of memory" if measured.status is Status.MEMORY else f"{measured.status}: {measured.message}"


def problem(measured: Measured) -> Problem:
    """The kind of problem that the baseline's trial shows."""
    if measured.status in (Status.TOO_SHORT, Status.BUDGET):
        return Problem.NO_STEP if not measured.steps else Problem(measured.status)
    return Problem.LOSS if measured.status is Status.NOT_FINITE else Problem.FAILED


def refusal(compared: Compared) -> str:
    return f"refused: the loss changes: {compared.why}"


def no_gain(gain: float, margin: float) -> str:
    return f"slower: {gain:.2f}×" if gain < 1 - margin else f"no gain above the noise ({100 * margin:.0f} %)"
