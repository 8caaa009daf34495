"""What `scale` and `demo` claim on a machine with stalls, drifts and two-fold slowdowns."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from machine import Weather
from records import step, write_record

from paceline.settings import RunSettings
from paceline.trials.core.interval import FEWEST, Interval, steady
from paceline.trials.demo.story import Machine, about_workers
from paceline.trials.scale import series
from paceline.trials.scale.why import VISIBLE

SEEDS = 200


def measured(seed: int, truth: float, folder: Path) -> series.Point:
    """The point of two workers, which are `truth` times as fast as one."""
    weather = Weather(seed)

    def launch(run, *, record, **_):
        seconds = 0.1 / weather.speed() / (truth if run.workers > 1 else 1.0)
        made = [step(k, own=0.8 * seconds, communication=0.2 * seconds) for k in range(1, 8)]
        return write_record(record, [made] * run.workers)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(series, "launch", launch)
        results = series.carry_out(
            series.plan(RunSettings(script="train.py"), (1, 2), rounds=3, mode="strong"),
            zygote=None,
            record=folder / str(seed),
            on_event=lambda event: None,
            on_start=lambda trial: None,
            on_result=lambda result: None,
        )
    return series.judge(results, mode="strong", record=folder, interrupted=False).points[1]


def test_over_200_noisy_machines_scale_and_demo_claim_nothing_outside_their_interval(tmp_path):
    truths = {seed: 1.5 if seed % 2 else 1.0 for seed in range(SEEDS)}
    points = {seed: measured(seed, truth, tmp_path) for seed, truth in truths.items()}
    claims = {seed: point for seed, point in points.items() if not point.tied}
    false = [seed for seed, point in claims.items() if not point.speedup_low <= truths[seed] <= point.speedup_high]
    assert len(false) <= 0.05 * SEEDS
    assert sum(truths[seed] == 1.0 for seed in claims) <= 0.05 * SEEDS / 2
    assert sum(truths[seed] > 1.0 for seed in claims) > SEEDS / 4, "silence would be safe, and of no use"
    assert all(FEWEST <= point.rounds <= 3 + series.AGAIN for point in points.values())
    two = Machine(cores=2, gpus=0, used=2)
    for point in points.values():
        said = about_workers(two, point)
        assert ("no difference" in said) == point.tied
        if point.tied:
            assert "because" not in said
            assert "%" not in said, "no share of a step, which would explain what was not measured"
            assert point.why is not None
            assert not point.why.sentence
        elif abs(1 - point.efficiency) > 2 * VISIBLE:
            assert point.why.sentence


@pytest.mark.parametrize("rounds", [2, 3])
def test_demo_calls_few_rounds_few_and_not_equal(rounds, tmp_path):
    point = measured(1, 1.0, tmp_path)
    point.rounds, point.tied, point.speedup_low, point.speedup_high = rounds, True, 2.55, 4.3
    said = about_workers(Machine(cores=2, gpus=0, used=2), point)
    assert ("no difference" in said) == (rounds > 2)
    assert ("three rounds are needed" in said) == (rounds < 3)


def test_an_interval_needs_three_pairs():
    for pairs in (1, 2):
        few = Interval.of([2.0] * pairs)
        assert not few.clear
        assert few.low <= few.ratio <= few.high
    assert Interval.of([2.0] * 3).faster
    assert Interval.of([0.5] * 3).slower
    assert not Interval.of([0.7, 1.0, 1.4]).clear


def test_a_stall_is_left_out_and_disagreement_is_not():
    assert steady([1.0, 1.02, 2.1]) == [1.0, 1.02]
    assert steady([1.0, 1.4, 2.1]) == [1.0, 1.4, 2.1]
    assert steady([1.0, 5.0]) == [1.0, 5.0]
    assert Interval.of([1.0, 1.02, 2.1, 0.99]).ratio == pytest.approx(math.exp(math.log(1.0 * 1.02 * 0.99) / 3))
    assert not Interval.of([1.0, 1.02, 2.1]).clear, "two rounds that agree are too few"
