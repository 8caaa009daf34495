"""The gradient noise scale: right on quadratics whose covariance is known, on several workers and on one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from staged import lone_group
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.comm.group import Group
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.converge.noise.measure import NoiseMeter
from paceline.errors import RecordError
from paceline.record.noise import Noise, read_noise
from paceline.script.seams import instrument
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings
from paceline.strategies.mirrored import Mirrored

if TYPE_CHECKING:
    from pool import Pools

WIDE = 20
AWAY = 1.0  # of the weights from the minimum, in each dimension: |G|² = WIDE · AWAY²
SPREAD = 2.0  # of a sample in each dimension: tr Σ = WIDE · SPREAD²
TRUTH = SPREAD**2 / AWAY**2


class Quadratic(nn.Module):
    """The loss of a sample x is ½|w − x|², and its gradient w − x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDE,), AWAY))
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (self.weight - x).square().sum(1)


@contextmanager
def measured(group: Group, folder: Path, *, sliced: bool = False, **run: Any) -> Iterator[NoiseMeter]:
    """A stage with a meter on it."""
    group.watch, group.pulse = Stopwatch(), Pulse()
    stage = Stage(RunSettings(**{"script": "", "workers": group.world} | run), group)
    stage.views.is_sliced = sliced
    mirrored = Mirrored()
    mirrored.on_stage(stage)
    meter = NoiseMeter(stage, folder, mirrored)
    lose = instrument.find(stage)
    try:
        yield meter
        meter.close()
    finally:
        lose()
        if "grad" in vars(torch.Tensor):
            del torch.Tensor.grad


def train(
    group: Group,
    folder: Path,
    *,
    micro: int = 1,
    batch: int = 9,
    clear: bool = True,
    clip: bool = False,
    steps: int = 200,
    **run: Any,
) -> float | None:
    """Steps that go nowhere, so that the truth stays the same."""
    torch.manual_seed(3)
    with measured(group, folder, **run) as meter:
        meter._weigh = lambda cost, step: None  # type: ignore[method-assign]  # measure every step
        model = Quadratic()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = DataLoader(TensorDataset(torch.randn(steps * batch * micro, WIDE) * SPREAD), batch)
        for number, (x,) in enumerate(loader, 1):
            (model(x).mean() / micro).backward()
            if number % micro == 0:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                if clear:
                    optimizer.zero_grad()
        return group.pulse.noise


@pytest.mark.parametrize(
    ("workers", "sliced", "sizes"),
    [pytest.param(3, False, {(3, 9)}, marks=pytest.mark.slow), (2, True, {(4, 9), (5, 9)})],
)
def test_a_quadratic_on_several_workers(
    pool: Pools, tmp_path: Path, workers: int, sliced: bool, sizes: set[tuple[int, int]]
) -> None:
    shown = pool(workers).run(call, tmp_path, {"sliced": sliced})
    found = pl.critical_batch(tmp_path, last=1.0)
    assert found.batch == pytest.approx(TRUTH, rel=0.1)
    assert found.spread == pytest.approx(WIDE * SPREAD**2, rel=0.05)
    assert found.signal == pytest.approx(WIDE * AWAY**2, rel=0.1)
    assert found.low < TRUTH < found.high
    assert shown[0] == pytest.approx(TRUTH, rel=0.5)
    assert {(line.small, line.large) for line in read_noise(tmp_path)} == sizes


def call(group: Group, folder: Path, run: dict[str, Any]) -> float | None:
    return train(group, folder, **run)


@pytest.mark.slow
def test_clipping_changes_nothing_and_accumulation_neither(pool: Pools, tmp_path: Path) -> None:
    pool(2).run(call, tmp_path, {"clip": True, "micro": 3, "batch": 4})
    found = pl.critical_batch(tmp_path, last=1.0)
    assert found.batch == pytest.approx(TRUTH, rel=0.1)
    assert {(line.small, line.large) for line in read_noise(tmp_path)} == {(6, 12)}


def test_one_worker_that_adds_up_micro_batches(tmp_path: Path) -> None:
    train(lone_group(), tmp_path, micro=4, batch=3, clip=True, steps=400)
    found = pl.critical_batch(tmp_path, last=1.0)
    assert found.batch == pytest.approx(TRUTH, rel=0.1)
    assert {(line.small, line.large) for line in read_noise(tmp_path)} == {(3, 12)}


def test_one_worker_without_micro_batches_measures_nothing_and_says_so(tmp_path: Path) -> None:
    group, said = lone_group(), []
    with measured(group, tmp_path):
        group.pulse._notify = lambda text, mod: said.append(text)
        model = Quadratic()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, WIDE)).mean().backward()
            optimizer.step()
    assert "two workers" in said[0]
    with pytest.raises(RecordError, match="no gradient noise"):
        pl.critical_batch(tmp_path)


def test_gradients_that_are_left_over_do_not_count(tmp_path: Path) -> None:
    train(lone_group(), tmp_path, micro=2, batch=3, clear=False)
    assert read_noise(tmp_path) == []


def test_steps_are_left_out_where_measuring_takes_too_long(tmp_path: Path) -> None:
    group = lone_group()
    with measured(group, tmp_path) as meter:
        for _ in range(4):
            meter._weigh(0.001, 0.1)
        assert meter.every == 2
        meter._weigh(1.0, 0.1)
        assert meter.every == 2


# -- the estimate ------------------------------------------------------------------------------------------------------


def lines(steps: int, *, small: int, large: int, truth: float, seed: int = 0, ranks: int = 1) -> list[Noise]:
    """Measurements of a gradient (1, 0, …) whose samples have this tr Σ, drawn as sums of independent parts."""
    rng = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        own = rng.normal(size=(large // small, WIDE)) * math.sqrt(truth / WIDE / small)
        own[:, 0] += 1.0
        whole = float((own.mean(0) ** 2).sum())
        for rank in range(ranks):
            part = float((own[rank] ** 2).sum())
            found.append(Noise(step=step, small=small, large=large, of_small=part, of_large=whole))
    return found


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(40):
        found = pl.critical_batch(lines(300, small=4, large=32, truth=50.0, seed=seed), last=1.0)
        held += found.low <= 50.0 <= found.high
    assert held >= 34


def test_more_workers_and_more_steps_make_it_narrower() -> None:
    def width(**how: Any) -> float:
        found = pl.critical_batch(lines(small=4, large=32, truth=50.0, **how), last=1.0)
        return found.high - found.low

    assert width(steps=3200) < 0.5 * width(steps=200)
    assert width(steps=200, ranks=8) < width(steps=200)


def test_quotients_of_single_steps_would_be_wrong() -> None:
    """Why numerator and denominator are averaged apart."""
    from paceline.converge.noise.critical_batch import estimates

    made = lines(400, small=1, large=8, truth=20.0)
    pairs = [estimates(line) for line in made]
    naive = float(np.mean([spread / signal for spread, signal in pairs]))
    right = pl.critical_batch(made, last=1.0).batch
    assert right == pytest.approx(20.0, rel=0.1)
    assert abs(naive - 20.0) > 5 * abs(right - 20.0)


def test_where_the_gradient_swings_each_step_has_its_own_scale() -> None:
    """Half of the steps at a scale of 100, half at 1: a batch of B takes Σ (1 + s/B) steps, hence 50.5. The quotient of
    means would be 2; and so it is found where a step is too small to be told from its noise."""

    def swinging(large: int) -> list[Noise]:
        calm = lines(200, small=large // 4, large=large, truth=100.0, ranks=4)
        # All of its squares a hundredfold, and the same spread: the gradient is ten times as long.
        wild = lines(200, small=large // 4, large=large, truth=1.0, ranks=4)
        wild = [
            Noise(**{**vars_of(one), "of_small": 100 * one.of_small, "of_large": 100 * one.of_large}) for one in wild
        ]
        return [one for pair in zip(calm, wild, strict=True) for one in _after_each_other(*pair)]

    assert pl.critical_batch(swinging(4096), last=1.0).batch == pytest.approx(50.5, rel=0.1)
    assert 1 < pl.critical_batch(swinging(16), last=1.0).batch < 10


def _after_each_other(calm: Noise, wild: Noise) -> tuple[Noise, Noise]:
    return (
        Noise(**{**vars_of(calm), "step": 2 * calm.step}),
        Noise(**{**vars_of(wild), "step": 2 * wild.step + 1}),
    )


def test_the_later_part_of_a_run_counts() -> None:
    early = lines(100, small=4, large=32, truth=5.0)
    late = [Noise(**{**vars_of(line), "step": line.step + 100}) for line in lines(100, small=4, large=32, truth=80.0)]
    found = pl.critical_batch([*early, *late])
    assert (found.first, found.last, found.steps) == (100, 199, 100)
    assert found.batch == pytest.approx(80.0, rel=0.3)


def vars_of(line: Noise) -> dict[str, Any]:
    return {name: getattr(line, name) for name in line.__struct_fields__}


def test_a_gradient_that_is_lost_in_noise_has_no_bound() -> None:
    made = [Noise(step=k, small=1, large=2, of_small=4.0, of_large=1.9 + 0.1 * (k % 2)) for k in range(20)]
    found = pl.critical_batch(made)
    assert found.batch == math.inf
    assert found.high == math.inf
    assert found.efficiency(1000) == 1.0


def test_at_the_critical_batch_speed_and_efficiency_are_half() -> None:
    found = pl.critical_batch(lines(50, small=4, large=32, truth=50.0))
    assert found.efficiency(found.batch) == found.speed(found.batch) == 0.5


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "noise.rank0.jsonl").write_bytes(
        b'{"step":3,"small":1,"large":2,"of_small":4.0,"of_large":3.0}\n{"step":4,"sm'
    )
    assert [line.step for line in read_noise(tmp_path)] == [3]
    assert pl.critical_batch(tmp_path).low == 0.0
