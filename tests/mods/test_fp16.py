"""precision=fp16: gradients are scaled while they are computed, and true when anybody looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from staged import lone_group, staged
from torch import nn

from paceline.comm.group import Group
from paceline.errors import ScriptError, UsageError
from paceline.mods import catalog, precision
from paceline.script.seams.stage import Stage


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.inside: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(x))
        self.inside = y.dtype
        return self.second(y)


def put_in(stage: Stage, mods: list[str]) -> precision.Scaler | None:
    for asked in catalog.parse(mods):
        mod = catalog.load(asked)
        mod.on_stage(stage)
        if asked.entry.name == "precision":
            return mod.scaler  # type: ignore[no-any-return]
    return None


def trained(group: Group, mods: list[str], how: str = "SGD", tiny: float = 1.0, steps: int = 6) -> Any:
    """Losses, gradient norms as clipping sees them, and what the model computed in."""
    with staged(group, mods=tuple(mods)) as stage:
        scaler = put_in(stage, mods)
        torch.manual_seed(1)
        model = Net()
        x, y = torch.randn(12, 6), torch.randint(3, (12,))
        optimizer = getattr(torch.optim, how)(model.parameters(), lr=0.05 / tiny)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        losses, norms = [], []
        for _ in range(steps):
            optimizer.zero_grad()
            for half in (slice(0, 6), slice(6, 12)):  # accumulated
                loss = F.cross_entropy(model(x[half]), y[half]) * tiny / 2
                loss = loss + 1e-3 * tiny * model.first.weight.pow(2).sum()  # and a penalty outside the model
                loss.backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.7 * tiny)) / tiny)
            optimizer.step()
            schedule.step()
            losses.append(loss.item() / tiny)
        return losses, norms, model.inside, scaler and (scaler.scale, scaler.skipped)


@pytest.mark.parametrize("how", ["SGD", "AdamW"])
@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_trains_with_the_plain_script_and_its_gradients_are_true(pool: Any, how: str, workers: int) -> None:
    losses, norms, _, _ = trained(lone_group(), [], how)
    mods = ["precision=fp16"]
    for found in [trained(lone_group(), mods, how)] if workers == 1 else pool(2).run(trained, mods, how):
        assert found[0] == pytest.approx(losses, rel=2e-2 if how == "AdamW" else 5e-3)
        assert found[1] == pytest.approx(norms, rel=3e-2 if how == "AdamW" else 1e-2)
        assert found[2] is torch.float16
        assert found[3] == (precision.FIRST, 0)


def test_small_gradients_do_not_vanish() -> None:
    """A loss of a millionth: without a scale float16 would give zeros inside."""
    tiny = 1e-6
    _, norms, _, _ = trained(lone_group(), [], tiny=tiny)
    _, found, _, _ = trained(lone_group(), ["precision=fp16"], tiny=tiny)
    assert found == pytest.approx(norms, rel=2e-2)


def skipping(group: Group, mods: list[str]) -> Any:
    """A loss that is large enough for infinite gradients at the first scales."""
    with staged(group, mods=tuple(mods)) as stage:
        scaler = put_in(stage, mods)
        assert scaler is not None
        torch.manual_seed(1)
        model, other = Net(), nn.Linear(6, 3)
        first = torch.optim.Adam(model.parameters(), lr=0.01)
        second = torch.optim.SGD(other.parameters(), lr=0.01)
        steps = Steps()
        stage.subscribe(steps)
        x, y = torch.randn(12, 6), torch.randint(3, (12,))
        seen = []
        for _ in range(12):
            loss = 100 * F.cross_entropy(model(x) + other(x), y)
            first.zero_grad()
            second.zero_grad()
            loss.backward()
            before = model.first.weight.detach().clone(), other.weight.detach().clone()
            first.step()
            second.step()
            moved = not torch.equal(before[0], model.first.weight), not torch.equal(before[1], other.weight)
            seen.append((scaler.scale, moved, bool(torch.isfinite(model.first.weight).all())))
        adam = int(first.state[model.first.weight]["step"])
        return seen, scaler.skipped, adam, steps.made, stage.notices  # type: ignore[attr-defined]


class Steps:
    made = 0

    def after_step(self, optimizer: Any) -> None:
        self.made += 1


@pytest.mark.parametrize("workers", [1, 2])
def test_steps_with_infinite_gradients_are_left_out_until_the_scale_fits(pool: Any, workers: int) -> None:
    mods = ["precision=fp16"]
    found = [skipping(lone_group(), mods)] if workers == 1 else pool(2).run(skipping, mods)
    for seen, skipped, adam, made, notices in found:
        scales, moved, finite = zip(*seen, strict=True)
        assert all(finite)
        assert moved[0] == (False, False), "the loss is large: the first step is infinite"
        assert moved[-1] == (True, True)
        assert scales[0] == precision.FIRST / 2, "one backward halves it once, for all optimizers"
        assert all(before in (now, 2 * now) for before, now in pairwise(scales))
        assert adam == sum(move[0] for move in moved), "a step that is left out leaves no trace in the optimizer"
        assert skipped == sum(move.count(False) for move in moved)
        assert made == 24, "whoever counts steps sees them all"
        assert any("a step was skipped" in notice for notice in notices)
    assert all(one[0] == found[0][0] for one in found), "all workers do the same"


def test_the_scale_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "GROWTH", 3)
    assert trained(lone_group(), ["precision=fp16"], steps=7)[3] == (4 * precision.FIRST, 0)


@given(st.lists(st.sampled_from(["fine", "infinite"]), max_size=40))
def test_the_rule_of_the_scale_is_torchs(steps: list[str]) -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=precision.FIRST, growth_interval=3)
    growth, precision.GROWTH = precision.GROWTH, 3
    try:
        with staged(lone_group()) as stage:
            scaler = put_in(stage, ["precision=fp16"])
            assert scaler is not None
            weight = nn.Parameter(torch.zeros(2))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for step in steps:
                factor = float("inf") if step == "infinite" else 1.0
                optimizer.zero_grad()
                (weight * factor).sum().backward()
                optimizer.step()
                twin = nn.Parameter(torch.zeros(2))
                reference = torch.optim.SGD([twin], lr=0.1)
                theirs.scale((twin * factor).sum())
                twin.grad = torch.full((2,), factor)
                theirs.step(reference)
                theirs.update()
                assert scaler.scale == max(theirs.get_scale(), precision.SMALLEST)
                if theirs.get_scale() < precision.SMALLEST:
                    return
    finally:
        precision.GROWTH = growth


def test_what_is_infinite_without_a_scale_is_the_scripts_own() -> None:
    with staged(lone_group()) as stage:
        scaler = put_in(stage, ["precision=fp16"])
        assert scaler is not None
        weight = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            (weight * float("nan")).sum().backward()
            optimizer.step()
        assert scaler.scale == precision.SMALLEST
        assert scaler.skipped == 16
        assert torch.isnan(weight).all()


def test_gradients_of_inputs_hooks_and_those_asked_for_by_name_are_true() -> None:
    def gradients(mods: list[str]) -> list[torch.Tensor]:
        with staged(lone_group()) as stage:
            put_in(stage, mods)
            torch.manual_seed(2)
            model, x, told = Net(), torch.randn(4, 6), []
            model.first.weight.register_hook(lambda grad: told.append(grad.clone()))
            found = []
            for _ in range(3):
                delta = torch.zeros(4, 6, requires_grad=True)  # a new leaf at every step
                model(x + delta).pow(2).mean().backward()
                assert delta.grad is not None
                found += [delta.grad, told.pop()]
                found += torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()))
            return found

    for found, wanted in zip(gradients(["precision=fp16"]), gradients([]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=5e-2, atol=2e-3)


def test_a_closure_is_refused_and_so_is_a_graph() -> None:
    with staged(lone_group()) as stage:
        put_in(stage, ["precision=fp16"])
        optimizer = torch.optim.LBFGS(Net().parameters())
        with pytest.raises(ScriptError, match="inside its step"):
            optimizer.step(lambda: torch.zeros(()))
    with pytest.raises(UsageError, match="exclude each other"):
        catalog.parse(["precision=fp16", "cuda_graphs"])
    catalog.parse(["precision=bf16", "cuda_graphs"])


@pytest.mark.parametrize(
    "mods", [["precision=fp16", "accumulate=2"], ["channels_last", "precision=fp16", "fused_optimizer"]], ids=str
)
def test_with_other_mods_on_two_workers(pool: Any, mods: list[str]) -> None:
    losses, norms, _, _ = trained(lone_group(), [])
    for found in pool(2).run(trained, mods):
        assert found[0] == pytest.approx(losses, rel=5e-3)
        assert found[1] == pytest.approx(norms, rel=1e-2)
