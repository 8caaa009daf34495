"""Each mod keeps the numbers as far as it promises, on one worker and on two."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn

from paceline.comm.group import Group
from paceline.mods import catalog

PRECISE = {"precision": 0.05}  # by how much a loss may differ; others: rounding of float32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Linear(8 * 16, 4)
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        self.seen = [(y.dtype, y.is_contiguous(memory_format=torch.channels_last))]
        return self.out(F.relu(self.norm(y)).flatten(1))


def trained(group: Group, mods: list[str], optimizer: str = "SGD") -> Any:
    """Losses of some steps, and what was seen inside."""
    threads, norm = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        with staged(group, mods=tuple(mods)) as stage:
            for asked in catalog.parse(mods):
                catalog.load(asked).on_stage(stage)
            torch.manual_seed(1)
            model = Net()
            x, y = torch.randn(12, 3, 4, 4), torch.randint(4, (12,))
            steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
            losses, dtypes = [], set()
            for _ in range(6):
                output = model(x)
                dtypes.add(output.dtype)
                loss = F.cross_entropy(output, y)
                steps.zero_grad()
                loss.backward()
                steps.step()
                losses.append(loss.item())
            facts = {"inside": model.seen, "outputs": dtypes, "fused": steps.param_groups[0].get("fused")}
            facts["threads"] = torch.get_num_threads()
            facts["compiled"] = model._compiled_call_impl is not None
            return losses, copy.deepcopy(facts)
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(norm)
        torch.backends.cudnn.benchmark = False


CASES = ["channels_last", "cudnn_benchmark", "fused_optimizer", "precision", "tf32", "threads=1"]


@pytest.mark.parametrize("mod", CASES)
@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_losses_stay_with_those_of_the_plain_script(pool: Any, mod: str, workers: int) -> None:
    plain, _ = trained(lone_group(), [])
    found = [trained(lone_group(), [mod])] if workers == 1 else pool(2).run(trained, [mod])
    for losses, _ in found:
        assert losses == pytest.approx(plain, rel=PRECISE.get(mod, 1e-5))


def test_all_together_train_as_the_least_precise_of_them(pool: Any) -> None:
    plain, _ = trained(lone_group(), [])
    for losses, _ in pool(2).run(trained, CASES):
        assert losses == pytest.approx(plain, rel=0.05)


def test_precision_computes_in_bf16_and_gives_float32() -> None:
    losses, facts = trained(lone_group(), ["precision=bf16"])
    plain, plainly = trained(lone_group(), [])
    assert facts["inside"][0][0] is torch.bfloat16
    assert plainly["inside"][0][0] is torch.float32
    assert facts["outputs"] == {torch.float32}
    assert losses != plain


def test_channels_last_reaches_the_convolutions() -> None:
    assert trained(lone_group(), ["channels_last"])[1]["inside"][0][1]
    assert not trained(lone_group(), [])[1]["inside"][0][1]


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_fused_optimizer_makes_the_same_steps(optimizer: str) -> None:
    plain, plainly = trained(lone_group(), [], optimizer)
    losses, facts = trained(lone_group(), ["fused_optimizer"], optimizer)
    assert facts["fused"]
    assert not plainly["fused"]
    assert losses == pytest.approx(plain, rel=1e-4)


def test_an_optimizer_that_has_no_fused_form_is_left_alone() -> None:
    plain, _ = trained(lone_group(), [], "RMSprop")
    assert trained(lone_group(), ["fused_optimizer"], "RMSprop")[0] == plain


def test_threads_are_set() -> None:
    assert trained(lone_group(), ["threads=2"])[1]["threads"] == 2
