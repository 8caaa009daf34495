"""Speeds of loaders that deliver in bursts, or that start their processes in each epoch: no wait is left out."""

from __future__ import annotations

import pytest

from paceline.record import Step
from paceline.tables.figures import Figures, columns_of, figures

COMPUTE = 0.005  # seconds of a step without its wait for input


def figures_of(
    waits: list[float], *, other: dict[int, float] | None = None, evaluated: tuple[int, ...] = ()
) -> Figures:
    """Steps of 16 samples with these waits for input; `other`: seconds that a step takes longer for another cause."""
    steps = []
    for number, wait in enumerate(waits, 1):
        more, evaluation = (other or {}).get(number, 0.0), 0.3 if number in evaluated else 0.0
        total = COMPUTE + wait + more + evaluation
        steps.append(
            Step(
                step=number,
                at=float(number),
                samples=16,
                total=total,
                data=wait,
                evaluation=evaluation,
                forward=COMPUTE,
                backward=0.0,
                communication=0.0,
                optimizer=more,
                loss=1.0,
                split=True,
            )
        )
    return figures({0: columns_of(steps)})


@pytest.mark.parametrize("processes", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("steps", [60, 97, 150, 400])
def test_bursts_count_in_full(processes, steps):
    """`processes` batches arrive together. The median block had from a third to three times the speed."""
    told = figures_of([0.12 if n % processes == 0 else 0.0 for n in range(steps)])
    assert told.samples_per_s == pytest.approx(16 / (COMPUTE + 0.12 / processes), rel=0.2)
    assert told.step_time == pytest.approx(16 / told.samples_per_s)
    assert told.low <= told.samples_per_s <= told.high


@pytest.mark.parametrize("evaluates", [False, True])
def test_the_start_of_each_epoch_counts(evaluates):
    starts = range(41, 400, 40)
    waits = [0.6 if n in starts else 0.001 for n in range(1, 401)]
    told = figures_of(waits, evaluated=tuple(starts) if evaluates else ())
    assert told.samples_per_s == pytest.approx(16 / (COMPUTE + 0.001 + 0.6 / 40), rel=0.15)


def test_an_accident_does_not_count():
    waits = [0.001] * 200
    waits[120] = 3.0
    assert figures_of(waits).samples_per_s == pytest.approx(16 / (COMPUTE + 0.001), rel=0.01)


def test_other_disturbances_stay_with_the_median():
    told = figures_of([0.001] * 200, other=dict.fromkeys(range(80, 110), 0.2))
    assert told.samples_per_s == pytest.approx(16 / (COMPUTE + 0.001), rel=0.01)


def test_a_loader_that_is_slow_in_every_step_is_measured_by_its_median():
    """Some steps are slower than others, and none is unlike the others."""
    waits = [0.03 + 0.002 * (n % 7) for n in range(200)]
    assert figures_of(waits).samples_per_s == pytest.approx(16 / (COMPUTE + 0.036), rel=0.02)
