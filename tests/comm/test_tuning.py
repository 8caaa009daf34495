"""What is tried in the first steps is kept only if it is faster, and every worker keeps the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from paceline.comm import bucket_tuning
from paceline.comm.bucket_tuning import BucketTuner
from paceline.comm.buckets import SIZE, Buckets
from paceline.comm.group import Group

ENOUGH = (bucket_tuning.SMALL >> 2) + 1  # parameters: the fewest for which sizes are tried
Cost = Callable[[int, int], float]  # seconds of a step, by size of buckets and number of the step


def tried(group: Group, cost: Cost, numel: int, waited: float) -> Any:
    """A run on a clock of its own, whose steps cost what they are told to."""
    parameter = torch.ones(numel, requires_grad=True)
    buckets = Buckets(group, lambda _: None)
    index = buckets.adopt(parameter)
    parameter.register_post_accumulate_grad_hook(lambda p: buckets.ready(index, p))
    now = [0.0]
    tuner = BucketTuner(group, buckets, clock=lambda: now[0])
    sums = []
    for step in range(50):
        parameter.grad = None
        buckets.begin(0)
        (parameter.sum() * (group.rank + 1)).backward()
        buckets.finish(0.0, 1.0)
        assert parameter.grad is not None
        sums.append(float(parameter.grad[-1]))
        with buckets.waits.one() if buckets.waits is not None else nullcontext():
            now[0] += waited
        now[0] += cost(buckets.size, step) * (1 + 0.001 * group.rank) - waited
        tuner.step()
    assert set(sums) == {1.5}, "whatever is tried, the sums are right"
    return tuner.verdict, buckets.size


def smaller_is_faster(size: int, step: int) -> float:
    return 0.8 if size < SIZE else 1.0


def larger_is_faster(size: int, step: int) -> float:
    return 0.9 if size > SIZE else 1.0


def all_the_same(size: int, step: int) -> float:
    return 1.0


def faster_once(size: int, step: int) -> float:
    """In the first round only: a machine that was busy for a while."""
    return 0.5 if size != SIZE and step < bucket_tuning.WARM_UP + 3 * bucket_tuning.BLOCK else 1.0


def hardly_faster(size: int, step: int) -> float:
    return 0.98 if size < SIZE else 1.0


@pytest.mark.parametrize(
    ("cost", "chosen"),
    [
        (smaller_is_faster, SIZE // 6),
        (larger_is_faster, 4 * SIZE),
        (all_the_same, SIZE),
        (faster_once, SIZE),
        (hardly_faster, SIZE),
    ],
)
def test_another_size_is_kept_only_if_it_was_faster_every_time(pool: Any, cost: Cost, chosen: int) -> None:
    for verdict, size in pool(2).run(tried, cost, ENOUGH, 0.5):
        assert size == verdict.chosen.bucket_bytes == chosen
        assert len(verdict.told()["tried"]) == 3
        assert all(len(way["seconds"]) == bucket_tuning.ROUNDS for way in verdict.told()["tried"])


@pytest.mark.parametrize(("numel", "waited", "why"), [(1000, 0.5, "too little"), (ENOUGH, 0.001, "nothing to gain")])
def test_nothing_is_tried_where_there_is_nothing_to_gain(pool: Any, numel: int, waited: float, why: str) -> None:
    for verdict, size in pool(2).run(tried, smaller_is_faster, numel, waited):
        assert size == SIZE
        assert verdict.told()["tried"] == []
        assert why in verdict.why
