"""The state of a candidate during a search, and how its results are told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from paceline.trials.core.result import Measured, Status
from paceline.trials.tune.candidates import LATER, LONG_START, Candidate
from paceline.trials.tune.loss_guard import Compared
from paceline.trials.tune.verdict import Problem, Row


class NothingToTune(Exception):
    """The baseline cannot be measured, or cannot be compared with. The text is a message for the user."""

    def __init__(self, code: Problem, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclasses.dataclass(slots=True, eq=False)
class CandidateStanding:
    """The state of a candidate during the search."""

    candidate: Candidate
    row: Row
    gain: float | None = None  # on top of the last set that it was tried on
    fruitless: int = 0  # number of trials without a gain
    out: bool = False  # refused, unsupported, or failed
    without: str = ""  # a mod that it fails with: it is tried on the best set less this one


def rank(standing: CandidateStanding, margin: float, *, replaces: bool) -> tuple[int, float, int]:
    """The sort key of a candidate that is to be tried on top of the best set: quick ones that gained elsewhere; those
    not tried yet, in their order; those with little to gain, and larger batches again; others that failed to gain once.
    Last those that failed twice, and those that would replace a mod that gained (`replaces`): their own gain would have
    to be larger still. What has a long start makes every later trial long: it waits for its turn even if it gained."""
    candidate, gain = standing.candidate, standing.gain
    if standing.fruitless > 1 or (replaces and not candidate.doubles):
        return (4, 0.0, candidate.order)
    if gain is not None and gain > 1 + margin and candidate.seconds < LONG_START:
        return (0, -gain, candidate.order)
    if standing.fruitless and not candidate.doubles:
        return (3, 0.0, candidate.order)
    untried = gain is None and not standing.fruitless
    return (1 if untried and candidate.order < LATER else 2, 0.0, candidate.order)


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


# -- the order that the phases of the unmodified script predict -------------------------------------------------------
# A mod that shortens one phase gains at most the share of that phase: with 2 % of a step spent waiting for input, no
# loader gains more. Such candidates come last, because the budget may end before; those for a wait that takes much of a
# step come first. The rest stays in the order of `candidates`.


MUCH = 0.3  # share of a step from which on a wait is the first thing to shorten
LITTLE = 0.05  # share of a step below which a phase has nothing to gain
WAITS = {"loader": "data", "resident": "data", "view": "communication", "bn": "communication"}
WORK = {"fused_optimizer": "optimizer"}


def put_in_order(standings: Iterable[CandidateStanding], step: Mapping[str, float]) -> None:
    """Changes the order of the candidates as these phases of a step predict. What an earlier profile put first stays
    there."""
    total = step.get("total", 0.0)
    for one in standings:
        phase = (WAITS | WORK).get(one.candidate.name)
        if phase is None or phase not in step or not total or one.candidate.order < 0:
            continue
        share = step[phase] / total
        shift = LATER if share < LITTLE else -LATER if share >= MUCH and phase in WAITS.values() else 0
        one.candidate = dataclasses.replace(one.candidate, order=one.candidate.order + shift)
