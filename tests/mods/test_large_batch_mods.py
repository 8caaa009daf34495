"""The mods for large batches: what a script would do whose author had written it so; alone and on two workers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.comm.group import Group
from paceline.converge.ghost_bn.module import GhostBatchNorm1d
from paceline.errors import ScriptError, UsageError
from paceline.mods import catalog
from paceline.mods.large_batch import NoiseEstimator, choose

STEPS = 6


class Net(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.inner(x))))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(48, 5, dtype=torch.float64), torch.randint(3, (48,))


def trained(
    group: Group,
    mods: list[str],
    how: str = "SGD",
    *,
    norm: bool = False,
    tensor: bool = False,
    plain: bool = False,
    **given: Any,
) -> Any:
    """Losses, rates as the script sees them, and what else a test may ask."""
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        x, y = data()
        torch.manual_seed(1)
        model = Net(norm).double()
        lr = given.pop("lr", 0.1)
        optimizer = getattr(torch.optim, how)(
            model.parameters(), lr=torch.tensor(lr, dtype=torch.float64) if tensor else lr, **given
        )
        schedule = None if tensor or plain else torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        seen: dict[str, Any] = {"losses": [], "rates": []}
        for inputs, labels in list(DataLoader(TensorDataset(x, y), 16)) * 2:
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            seen["losses"].append(loss.item())
            seen["rates"].append(float(optimizer.param_groups[0]["lr"]))
        seen["weights"] = [p.detach().clone() for p in model.parameters()]
        seen["kind"] = type(model.norm).__name__
        seen["state"] = copy.deepcopy(optimizer.state_dict())
        seen["notices"] = stage.notices  # type: ignore[attr-defined]
        return seen


def by_hand(rates: list[float], how: str = "SGD", **given: Any) -> list[float]:
    """The same script, its author having written these rates."""
    x, y = data()
    torch.manual_seed(1)
    model = Net(False).double()
    optimizer = getattr(torch.optim, how)(model.parameters(), lr=1.0, **given)
    losses = []
    for (inputs, labels), rate in zip(list(DataLoader(TensorDataset(x, y), 16)) * 2, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OWN = [0.1 * 0.9**step for step in range(STEPS)]


def along(start: float, top: float, steps: int) -> list[float]:
    return [start + (top - start) * min(1.0, (step + 0.5) / steps) if step < steps else top for step in range(STEPS)]


@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("mods", "how", "times"),
    [
        (["lr_scale=4"], "SGD", [4.0] * STEPS),
        (["lr_scale=4"], "Adam", [2.0] * STEPS),
        (["lr_scale=4:linear"], "Adam", [4.0] * STEPS),
        (["lr_scale=4", "warmup=4"], "SGD", along(1.0, 4.0, 4)),
        (["warmup=4", "lr_scale=9:sqrt"], "SGD", along(1.0, 3.0, 4)),
        (["warmup=3"], "SGD", along(0.0, 1.0, 3)),
    ],
    ids=str,
)
def test_rates_are_those_that_the_mods_say_and_the_script_never_notices(
    pool: Any, mods: list[str], how: str, times: list[float], workers: int
) -> None:
    expected = by_hand([rate * t for rate, t in zip(OWN, times, strict=True)], how)
    for found in [trained(lone_group(), mods, how)] if workers == 1 else pool(2).run(trained, mods, how):
        assert found["losses"] == pytest.approx(expected, rel=1e-9)
        assert found["rates"] == pytest.approx([0.1 * 0.9**step for step in range(1, STEPS + 1)], rel=1e-14)


def test_a_decay_is_for_scripts_that_have_no_schedule() -> None:
    times = [0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / 4))) for step in range(STEPS)]
    found = trained(lone_group(), ["decay=4"], plain=True)
    assert found["losses"] == pytest.approx(by_hand([0.1 * t for t in times]), rel=1e-9)
    assert found["rates"] == [0.1] * STEPS
    found = trained(lone_group(), ["decay=4"])
    assert found["losses"] == pytest.approx(by_hand(OWN), rel=1e-9)
    assert "--mod decay=4 is not in force: the script has a schedule of its own." in found["notices"]


def test_a_tensor_as_rate_is_put_back_exactly_under_several_mods() -> None:
    found = trained(lone_group(), ["lr_scale=4", "warmup=4", "batch=16"], tensor=True)
    assert found["rates"] == [0.1] * STEPS
    assert found["losses"] == pytest.approx(by_hand([0.1 * t for t in along(1.0, 4.0, 4)]), rel=1e-9)


@pytest.mark.parametrize("mods", [["batch=x4:linear", "warmup=3"], ["batch=x4:none", "lr_scale=4", "warmup=3"]])
def test_a_warm_up_to_what_batch_scales(mods: list[str]) -> None:
    seen: list[float] = []
    with staged(lone_group(), mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        x, y = data()
        model = Net(False).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        for _ in range(4):
            for inputs, labels in DataLoader(TensorDataset(x, y), 4):
                assert len(inputs) == 16
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
    assert seen[:4] == pytest.approx([0.1 * t for t in along(1.0, 4.0, 3)[:4]])
    assert optimizer.param_groups[0]["lr"] == 0.1


# -- ghost batch norm --------------------------------------------------------------------------------------------------


def test_ghosts_are_those_of_the_api() -> None:
    x, y = data()
    torch.manual_seed(1)
    model = pl.ghost(Net(True).double(), 4)
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (inputs, labels), rate in zip(list(DataLoader(TensorDataset(x, y), 16)) * 2, OWN, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = trained(lone_group(), ["ghost_bn=4"], norm=True)
    assert found["kind"] == GhostBatchNorm1d.__name__
    assert found["losses"] == pytest.approx(losses, rel=1e-10)
    assert not any("ghost" in notice for notice in found["notices"])


def test_ghosts_that_divide_a_workers_slice_are_the_same_ghosts_on_two_workers(pool: Any) -> None:
    alone = trained(lone_group(), ["ghost_bn=4"], norm=True)
    for found in pool(2).run(_with_norm, ["ghost_bn=4"]):
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-9)


def _with_norm(group: Group, mods: list[str]) -> Any:
    return trained(group, mods, norm=True)


def test_a_batch_smaller_than_a_ghost_is_told_once() -> None:
    found = trained(lone_group(), ["ghost_bn=64"], norm=True)
    assert [n for n in found["notices"] if "fewer than a ghost" in n] == [
        "ghost_bn=64: a worker's batch has 16 samples, fewer than a ghost: batch norm sees all of them, as without the "
        "mod."
    ]
    assert found["losses"] == pytest.approx(trained(lone_group(), [], norm=True)["losses"], rel=1e-9)


def test_a_script_without_batch_norm_asked_for_ghosts() -> None:
    with pytest.raises(ScriptError, match="models have no batch norm"):
        trained(lone_group(), ["ghost_bn=4"])


# -- the optimizer -----------------------------------------------------------------------------------------------------


def with_api(kind: Any, rates: list[tuple[float, float]], **given: Any) -> list[float]:
    """A script whose author wrote `kind`, with these rates of what is adapted and what is not."""
    x, y = data()
    torch.manual_seed(1)
    model = Net(False).double()
    optimizer = kind(pl.no_decay(model), lr=1.0, **given)
    losses = []
    for (inputs, labels), two in zip(list(DataLoader(TensorDataset(x, y), 16)) * 2, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, two, strict=True):
            group["lr"] = rate
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("mod", "how", "given", "kind", "settings", "other"),
    [
        ("lamb:0.02", "Adam", {"betas": (0.8, 0.99), "eps": 1e-5, "weight_decay": 0.1}, "LAMB",
         {"betas": (0.8, 0.99), "eps": 1e-5, "weight_decay": 0.1}, 1.0),
        ("lars:5", "SGD", {"momentum": 0.7, "weight_decay": 0.01}, "LARS",
         {"momentum": 0.7, "weight_decay": 0.01}, 1.0),
    ],
)  # fmt: skip
def test_steps_are_those_of_the_api_with_the_scripts_settings(
    pool: Any, mod: str, how: str, given: Any, kind: str, settings: Any, other: float, workers: int
) -> None:
    top = float(mod.partition(":")[2])
    rates = [(top * 0.9**step, 0.1 * other * 0.9**step) for step in range(STEPS)]
    expected = with_api(getattr(pl, kind), rates, **settings)
    mods = [f"optimizer={mod}"]
    runs = [_with(lone_group(), mods, how, given)] if workers == 1 else pool(2).run(_with, mods, how, given)
    for found in runs:
        assert found["losses"] == pytest.approx(expected, rel=1e-9)
        assert len(found["state"]["param_groups"]) == 1, "the script's groups stay"
        assert any(f"{kind} replaces {how}" in notice for notice in found["notices"])


def _with(group: Group, mods: list[str], how: str, given: Any) -> Any:
    return trained(group, mods, how, **given)


@pytest.mark.parametrize(("how", "lr"), [("SGD", 1e-4), ("SGD", 0.05), ("SGD", 9.0), ("Adam", 0.003), ("Adam", 0.3)])
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_a_rate_that_fits_makes_first_steps_as_long_as_the_scripts_own_within_reason(
    name: str, how: str, lr: float
) -> None:
    def moved(mods: list[str]) -> float:
        with staged(lone_group(), mods=tuple(mods)) as stage:
            for asked in catalog.parse(mods):
                catalog.load(asked).on_stage(stage)
            torch.manual_seed(1)
            model = Net(False).double()
            layers = (model.inner.weight, model.out.weight)
            before = [weight.detach().clone() for weight in layers]
            optimizer = getattr(torch.optim, how)(model.parameters(), lr=lr)
            x, y = data()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            apart = [float((a.detach() - b).norm()) for a, b in zip(layers, before, strict=True)]
            return math.hypot(*apart) / math.hypot(*(float(b.norm()) for b in before))

    # LARS with Adam's β1 as its momentum begins with a step of that much less.
    slack = math.sqrt(1 - 0.9**2) if (name, how) == ("lars", "Adam") else 1.0
    assert moved([f"optimizer={name}"]) == pytest.approx(min(0.02, max(0.005, moved([]))) * slack, rel=1e-3)


def test_with_few_steps_in_all_layers_move_further() -> None:
    short = trained(lone_group(), ["optimizer=lamb", "decay=60"], plain=True, lr=1e-5)
    assert any("the layers' learning rate is 0.05, " in notice for notice in short["notices"])
    long = trained(lone_group(), ["optimizer=lamb", "decay=60000"], plain=True, lr=1e-5)
    assert any("the layers' learning rate is 0.005, " in notice for notice in long["notices"])


@pytest.mark.parametrize(("name", "how"), [("lamb", "SGD"), ("lars", "Adam"), ("lamb", "AdamW"), ("lars", "SGD")])
def test_a_state_is_saved_and_loaded_by_the_scripts_own_optimizer(name: str, how: str) -> None:
    def made(mods: list[str]) -> Any:
        torch.manual_seed(1)
        model = Net(False).double()
        return model, getattr(torch.optim, how)(model.parameters(), lr=0.01)

    def step(model: Any, optimizer: Any) -> float:
        x, y = data()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    mods = [f"optimizer={name}:0.02"]
    with staged(lone_group(), mods=tuple(mods)) as stage:
        catalog.load(catalog.parse(mods)[0]).on_stage(stage)
        model, optimizer = made(mods)
        for _ in range(3):
            step(model, optimizer)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        on = [step(model, optimizer) for _ in range(3)]
        model, optimizer = made(mods)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        assert [step(model, optimizer) for _ in range(3)] == on


def test_a_closure_and_a_gradient_scaler() -> None:
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["optimizer=lamb"])[0]).on_stage(stage)
        model = Net(False)
        x, y = data()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.float()), y)
            loss.backward()
            return loss

        first = optimizer.step(closure)
        assert first is not None
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x.float()), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert F.cross_entropy(model(x.float()), y) < first


@pytest.mark.parametrize("how", ["RMSprop", "Adagrad"])
def test_other_optimizers_are_refused(how: str) -> None:
    with pytest.raises(ScriptError, match=f"the script has {how}"):
        trained(lone_group(), ["optimizer=lamb"], how)


def test_weights_in_float16_are_refused() -> None:
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float16))
    for kind in (pl.LAMB, pl.LARS):
        with pytest.raises(UsageError, match="weights in float16"):
            kind([weight])
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["optimizer=lamb"])[0]).on_stage(stage)
        with pytest.raises(ScriptError, match="weights in float16"):
            torch.optim.Adam([weight])


# -- auto --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "can", "chosen", "scale", "says"),
    [
        (10_000.0, "lamb", "", 8.0, "mostly noise at this batch, so the rate is scaled × 8 (linear rule)"),
        (math.inf, "lars", "", 8.0, "too large to measure"),
        (300.0, "lamb", "lamb", math.sqrt(8), "about 300 samples"),
        (300.0, "lars", "lars", math.sqrt(8), "so LARS adapts each layer's step length"),
        (None, "lamb", "lamb", math.sqrt(8), "unknown"),
        (300.0, "", "", math.sqrt(8), "this optimizer cannot be replaced"),
    ],
)
def test_what_is_chosen(noise: float | None, can: str, chosen: str, scale: float, says: str) -> None:
    wanted: dict[str, Any] = {"batch": 4096, "times": 8, "rule": "linear", "steps": 88, "warm_up": 14, "ghosts": 32}
    made = choose(noise=noise, layerwise=can, known=False, **wanted)
    if chosen:
        assert choose(noise=noise, layerwise=can, known=True, **wanted).scale == 1.0
    assert (made.optimizer, made.scale) == (chosen, pytest.approx(scale))
    assert says in made.why
    assert "ghosts of 32, warm-up over 14 steps, cosine to step 88" in made.why


def test_the_meter_finds_the_noise_scale_of_a_known_noise() -> None:
    torch.manual_seed(0)
    true, spread, batch = torch.full((2000,), 0.05), 1.0, 64
    weight = nn.Parameter(torch.zeros(2000))
    optimizer, meter = torch.optim.SGD([weight], lr=0.0), NoiseEstimator(4000)
    for step in range(200):
        weight.grad = true + spread / math.sqrt(batch) * torch.randn(2000)
        assert meter.take(optimizer) == (step == 199)
    expected = spread**2 * 2000 / float(true.square().sum())
    assert meter.noise(batch) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("how", ["SGD", "Adam", "RMSprop"])
@pytest.mark.crossed("workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_auto_measures_then_chooses_and_trains_on(pool: Any, workers: int, how: str) -> None:
    runs = [_auto(lone_group(), how)] if workers == 1 else pool(2).run(_auto, how)
    for losses, notices, rate in runs:
        assert sum("large_batch=auto: the noise scale is" in notice for notice in notices) == 1
        assert all(math.isfinite(loss) for loss in losses)
        assert sum(losses[-6:]) < sum(losses[:6])
        assert rate == 0.05
    if workers == 2:
        assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-6)
        assert runs[0][0] == pytest.approx(_auto(lone_group(), how)[0], rel=1e-4)


def _auto(group: Group, how: str) -> Any:
    mods = ["batch=x4", "large_batch=auto:48"]
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        torch.manual_seed(3)
        x = torch.randn(96, 5, dtype=torch.float64)
        y = (x @ torch.randn(5, 3, dtype=torch.float64)).argmax(1)
        loader = DataLoader(TensorDataset(x, y), 4)
        torch.manual_seed(1)
        model = Net(False).double()
        optimizer = getattr(torch.optim, how)(model.parameters(), lr=0.05)
        losses = []
        for _ in range(8):
            for inputs, labels in loader:
                loss = F.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, stage.notices, optimizer.param_groups[0]["lr"]  # type: ignore[attr-defined]


def test_auto_has_nothing_to_do_where_the_batch_did_not_grow() -> None:
    found = trained(lone_group(), ["large_batch=auto"])
    assert found["losses"] == pytest.approx(by_hand(OWN), rel=1e-12)
    assert "--mod large_batch=auto is not in force: the batch is the script's own (see --emulate)." in found["notices"]
