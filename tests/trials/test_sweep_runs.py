"""Sweeps of real scripts on a real zygote: batches that grow, memory that runs out, data that ends."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.launch import Zygote
from paceline.settings import RunSettings
from paceline.trials.core.bench import Bench, Budget
from paceline.trials.sweep.search import OnBench, Sweep, Verdict, judge

TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn({samples}, 16)), batch_size=32, drop_last={drop_last})
    k = 0
    for epoch in range(100):
        for (x,) in loader:
            loss = model(x).square().mean() + 0 * x.repeat(1, {wide}).mean()
            loss.backward()
            k += 1
            if k % {accumulate} == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


@pytest.fixture
def swept(zygote: Zygote, tmp_path: Path) -> Callable[..., Verdict]:
    def swept(*, start=None, to=None, samples=4096, wide=1, drop_last=False, accumulate=1, **settings) -> Verdict:
        script = tmp_path / "train.py"
        text = TRAIN.format(samples=samples, wide=wide, drop_last=drop_last, accumulate=accumulate)
        script.write_text(textwrap.dedent(text))
        bench = Bench(
            RunSettings(script=str(script), steps=12, **settings),
            zygote=zygote,
            record=tmp_path,
            budget=Budget(None),
            verb="sweep",
        )
        measure = OnBench(bench, start)
        # Speeds of such short trials say nothing: the walk is what is looked at.
        sweep = Sweep(measure, bench.budget, start=start, to=to, repeat=1, to_the_end=True)
        sweep._double()
        return judge(sweep, workers=bench.settings.workers, mods=[], ask=measure.value)

    return swept


@pytest.mark.slow  # test_bench.py has one trial that runs out of memory
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_runs_out_on_every_worker_or_on_none(swept, workers):
    verdict = swept(start=256, workers=workers, wide=2048, memory_limit=100 << 20)  # 128 KiB a sample
    assert verdict.ceiling == "memory"
    assert "tried to allocate" in verdict.why
    assert verdict.points[-1].fits is False
    fitting = [point for point in verdict.points if point.fits]
    assert [point.batch for point in fitting] == [256 * 2**k for k in range(len(fitting))]
    assert len(fitting) >= 2
    assert fitting[-1].memory > fitting[0].memory


def test_a_data_set_that_is_smaller_than_the_batch(swept):
    verdict = swept(samples=100)
    assert verdict.ceiling == "data"
    assert verdict.largest == 100


def test_a_loader_that_would_drop_its_only_batch(swept):
    verdict = swept(samples=100, drop_last=True)
    assert (verdict.ceiling, verdict.largest) == ("data", 100), "no batch is larger than its data: none is dropped"


@pytest.mark.parametrize("start", [pytest.param(None, marks=pytest.mark.slow), 16])
def test_gradients_that_are_summed_over_batches(swept, start):
    """Four batches a step: sizes are samples a step, and double all the same."""
    verdict = swept(start=start, accumulate=4, to=512)
    own = 4 * (start or 32)
    assert [point.batch for point in verdict.points] == [own * 2**k for k in range(len(verdict.points))]
    assert verdict.largest == 512
