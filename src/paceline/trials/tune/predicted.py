"""The order of candidates that the phases of the unmodified script predict.

A mod that shortens one phase gains at most the share of that phase: with 2 % of a step spent waiting for input, no
loader gains more. Such candidates come last, because the budget may end before; those for a wait that takes much of a
step come first. The rest stays in the order of `candidates`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from paceline.trials.tune.candidates import LATER
from paceline.trials.tune.standing import CandidateStanding

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
