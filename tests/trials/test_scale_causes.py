"""Why efficiency falls, on real workers: a script with one trouble at a time, and the trouble that is named.

On a played clock, which a busy machine cannot disturb; and once with real time, which it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from played import CLOCK

from paceline.launch import Zygote
from paceline.settings import RunSettings
from paceline.trials.scale import series
from paceline.trials.scale.why import CAUSES, Why

TROUBLE = 0.04  # seconds a step: a busy machine makes waits of its own, which must stay below it
WORK = 0.02  # seconds a step of one worker: shared out among several
REAL = "from time import sleep as spend\n"

SCRIPT = f"""
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from paceline.settings import of_this_process

cause, trouble = sys.argv[1], {TROUBLE}

if cause == "communication":
    from paceline.comm.channels import Pending

    def finish(self, what, plain=Pending.finish):
        wait = self._wait
        self._wait = lambda: (wait(), spend(trouble))
        plain(self, what)

    Pending.finish = finish


class Data(Dataset):
    def __len__(self):
        return 800

    def __getitems__(self, indices):
        if cause == "input":
            spend(trouble)
        return [(torch.full((8,), i / 800), torch.tensor([float(i % 3)])) for i in indices]


class Model(torch.nn.Linear):
    def forward(self, x):
        if cause == "compute" or (cause == "imbalance" and of_this_process().rank == 1):
            spend(trouble)
        spend({WORK} * len(x) / 8)
        return super().forward(x)


torch.manual_seed(0)
model = Model(8, 1)
for x, y in DataLoader(Data(), batch_size=8):
    loss = torch.nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
"""


CASES = [*((cause, "strong") for cause in CAUSES), pytest.param("communication", "weak", marks=pytest.mark.slow)]


def explained(zygote: Zygote, tmp_path: Path, cause: str, mode: series.Mode, clock: str) -> Why:
    """Why two workers lose what they lose."""
    script = tmp_path / "train.py"
    script.write_text(clock + SCRIPT)
    settings = RunSettings(script=str(script), arguments=(cause,), threads=1, steps=14)
    results = series.carry_out(
        series.plan(settings, (1, 2), rounds=3, mode=mode),
        zygote=zygote,
        record=tmp_path / "record",
        on_event=lambda event: None,
        on_start=lambda trial: None,
        on_result=lambda result: None,
    )
    verdict = series.judge(results, mode=mode, record=tmp_path / "record", interrupted=False)
    assert not verdict.failures
    why = verdict.points[1].why
    assert why is not None
    assert f"largest cause is {cause}" in why.sentence
    assert sum(why.lost.values()) == pytest.approx(1 - verdict.points[1].efficiency)
    if cause == "imbalance":
        assert why.waited_for == 1
    return why


def injected(cause: str) -> float:
    """Of the mean worker: where one of two is late, the other's waiting is half of it."""
    return TROUBLE / 2 if cause == "imbalance" else TROUBLE


@pytest.mark.parametrize(("cause", "mode"), CASES)
def test_the_trouble_is_named_with_its_seconds(zygote: Zygote, tmp_path: Path, cause: str, mode: series.Mode) -> None:
    why = explained(zygote, tmp_path, cause, mode, CLOCK)
    work = WORK / (2 if mode == "strong" else 1)
    others = {"compute": work + (TROUBLE / 2 if cause == "imbalance" else 0.0)}
    for each in CAUSES:
        expected = others.get(each, 0.0) + (injected(cause) if each == cause else 0.0)
        assert why.seconds[each] == pytest.approx(expected, abs=1e-6), each


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "mode"), CASES)
def test_the_trouble_is_named_in_real_time(zygote: Zygote, tmp_path: Path, cause: str, mode: series.Mode) -> None:
    why = explained(zygote, tmp_path, cause, mode, REAL)
    assert why.seconds[cause] > 0.5 * injected(cause)  # most: how much is lost on a busy machine, nobody knows
