"""Losses are compared at once on the host, and a backward later where a GPU computes them."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.agreement.updates import LossCheck
from paceline.errors import PartedError


@pytest.mark.parametrize("losses", [(1.0, 1.00001), (0.0, 0.0), (1e-12, 0.0), (math.nan, 1.0), (math.inf, 3.0)])
def test_rounding_and_overflow_are_no_difference(losses: tuple[float, ...]) -> None:
    LossCheck().compare(losses, late=False)


def test_another_loss_is_refused_with_its_line() -> None:
    with pytest.raises(
        PartedError, match=r"test_loss_check\.py:\d+ differ between the workers: worker 0 1, worker 1 1\.01"
    ):
        LossCheck().compare((1.0, 1.01), late=False)


@pytest.mark.gpu
def test_a_loss_on_a_gpu_comes_a_backward_later() -> None:
    check = LossCheck()
    assert [check.late(torch.tensor(value, device="cuda")) for value in (3.0, 4.0, 5.0)] == [0.0, 3.0, 4.0]
    assert check.late(torch.ones(2, device="cuda")) == 5.0  # no single number: nothing to compare
    assert check.late(torch.tensor(1.0, device="cuda")) == 0.0
