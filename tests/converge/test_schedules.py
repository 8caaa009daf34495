"""Rates for large batches, as torch schedulers."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import paceline as pl
from paceline.converge.schedules import factor, scale_rate
from paceline.errors import UsageError


def optimizer(lr: Any = 0.1) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.ones(2))]}, {"params": [nn.Parameter(torch.ones(2))], "lr": 0.01}]
    return torch.optim.SGD(groups, lr=lr)


def rates(schedule: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(float(schedule.optimizer.param_groups[0]["lr"]))
        schedule.optimizer.step()
        schedule.step()
    return found


def test_the_rules() -> None:
    assert scale_rate("linear", 8) == 8.0
    assert scale_rate("sqrt", 16) == 4.0
    assert scale_rate("linear", 0.5) == 0.5


def test_warm_up_goes_step_by_step_from_the_unscaled_rate() -> None:
    found = rates(pl.ScaledRate(optimizer(), batch=8, warm_up=4), 7)
    assert found == pytest.approx([0.1, 0.275, 0.45, 0.625, 0.8, 0.8, 0.8])


def test_warm_up_from_nothing() -> None:
    found = rates(pl.ScaledRate(optimizer(), warm_up=2, start=0.0), 4)
    assert found == pytest.approx([0.0, 0.05, 0.1, 0.1])


def test_every_group_keeps_its_own_rate() -> None:
    schedule = pl.ScaledRate(optimizer(), batch=4, rule="sqrt")
    assert [group["lr"] for group in schedule.optimizer.param_groups] == [0.2, 0.02]


def test_cosine_and_polynomial_end_where_they_should() -> None:
    cosine = rates(pl.ScaledRate(optimizer(), batch=2, warm_up=2, steps=10, decay="cosine"), 13)
    expected = [0.2 * 0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(9)]
    assert cosine[2:11] == pytest.approx(expected)
    assert cosine[10:] == pytest.approx([0.0, 0.0, 0.0])
    straight = rates(pl.ScaledRate(optimizer(), steps=4, decay="polynomial", power=2.0, end=0.1), 6)
    assert straight == pytest.approx([0.1 * (0.1 + 0.9 * (1 - k / 4) ** 2) for k in range(5)] + [0.01])


@given(
    scale=st.floats(0.1, 64),
    start=st.floats(0, 2),
    warm_up=st.integers(0, 50),
    after=st.integers(1, 100),
    decay=st.sampled_from(["none", "cosine", "polynomial"]),
    end=st.floats(0, 1),
)
def test_the_rate_goes_up_or_down_in_one_line_and_then_never_up(
    scale: float, start: float, warm_up: int, after: int, decay: Any, end: float
) -> None:
    settings: Any = {"scale": scale, "start": start, "warm_up": warm_up, "steps": warm_up + after, "decay": decay}
    found = [factor(step, **settings, end=end) for step in range(warm_up + after + 3)]
    steps = [b - a for a, b in itertools.pairwise(found[: warm_up + 1])]
    assert steps == pytest.approx([(scale - start) / max(1, warm_up)] * warm_up)
    assert found[warm_up] == pytest.approx(scale)
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(found[warm_up:]))
    assert found[-1] == pytest.approx(scale if decay == "none" else scale * end, abs=1e-9)


def test_a_run_that_is_resumed_goes_on_exactly() -> None:
    whole = pl.ScaledRate(optimizer(), batch=8, warm_up=5, steps=20, decay="cosine")
    expected = rates(whole, 20)
    first = pl.ScaledRate(optimizer(), batch=8, warm_up=5, steps=20, decay="cosine")
    rates(first, 7)
    kept = io.BytesIO()
    torch.save({"schedule": first.state_dict(), "optimizer": first.optimizer.state_dict()}, kept)
    kept.seek(0)
    saved = torch.load(kept)
    again = optimizer()
    schedule = pl.ScaledRate(again)  # whose settings loading replaces
    again.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    assert rates(schedule, 13) == expected[7:]


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    lr = torch.tensor(0.1)
    schedule = pl.ScaledRate(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=lr), batch=4, warm_up=2)
    assert rates(schedule, 3) == pytest.approx([0.1, 0.25, 0.4])
    assert schedule.optimizer.param_groups[0]["lr"] is lr


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rule": "cubic"}, "rule 'cubic' does not exist"),
        ({"batch": 0}, "batch multiple 0 is not valid"),
        ({"decay": "exponential"}, "decay 'exponential' does not exist"),
        ({"warm_up": -1}, "negative: warm_up=-1"),
        ({"decay": "cosine"}, "ends at step 0"),
        ({"decay": "cosine", "warm_up": 10, "steps": 10}, "ends at step 10"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        pl.ScaledRate(optimizer(), **wrong)
