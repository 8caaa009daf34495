"""A slowest worker is named where its delay stands out of the scatter, and not where workers are late in turns."""

from __future__ import annotations

import math
import random

import pytest

from paceline.record import Step
from paceline.tables.figures import columns_of, figures

SEEDS = range(100)


def slow(seed: int, count: int, *, late: float = 1.0) -> bool:
    """Two workers on a busy machine: each is disturbed for several steps in a row. `late`: times the other's work that
    worker 1 does."""
    chance = random.Random(seed)
    states, steps = [0.0, 0.0], ([], [])
    for number in range(1, count + 1):
        states = [0.8 * state + 0.6 * chance.gauss(0, 0.15) for state in states]
        own = [math.exp(state) * factor for state, factor in zip(states, (1.0, late), strict=True)]
        for mine, work in zip(steps, own, strict=True):
            parts = {"data": 0.0, "forward": 0.03 * work, "backward": 0.06 * work, "optimizer": 0.0}
            parts["communication"] = 0.005 + 0.09 * (max(own) - work)
            mine.append(Step(step=number, at=number, samples=64, total=sum(parts.values()), **parts))
    found = figures({rank: columns_of(mine) for rank, mine in enumerate(steps)}).slowest
    return found is not None and found.slow


@pytest.mark.parametrize("count", [40, 120])
def test_workers_that_are_disturbed_in_turns_are_not_slow(count):
    assert sum(slow(seed, count) for seed in SEEDS) <= 0.06 * len(SEEDS)


def test_a_worker_that_takes_twice_as_long_is_slow():
    assert sum(slow(seed, 120, late=2.0) for seed in SEEDS) >= 0.95 * len(SEEDS)
