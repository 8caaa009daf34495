"""What a pipeline of `paceline.data` cost is in the record of the run that used it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.record.pipelines import pipelines_path, read_pipelines

SCRIPT = """
import torch, paceline.data as pd
from torch import nn

def double(number):
    return torch.full((4,), number / 20), torch.tensor([number / 10])

train = pd.items(list(range(20))).map_and_batch(double, 4, kind="here").prefetch()
test = pd.arrays(torch.zeros(8, 4)).batch(4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for x, y in train:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for x in test:
        model(x)
"""
LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for x, y in DataLoader(TensorDataset(torch.ones(20, 4), torch.ones(20, 1)), 4):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_keeps_the_report_of_each_pipeline(play: Callable[..., Any], workers: int) -> None:
    record = play(SCRIPT, workers).well.record
    for rank in range(workers):
        train, test = read_pipelines(record, rank)
        assert (train.title, train.report.results, train.step) == ("items", 10, 10)
        assert (test.title, test.report.results) == ("arrays", 4)
        assert [stage.name for stage in train.report.stages] == ["map double · batch 4", "prefetch"]
        assert train.report.stages[0].results == 10
        assert train.report.seconds > 0
        assert train.report.bottleneck
    assert not pipelines_path(record, workers).exists()


def test_a_run_that_is_stopped_in_the_middle_of_an_epoch_keeps_it_too(play: Callable[..., Any]) -> None:
    record = play(SCRIPT, 1, steps=3).well.record
    (train,) = read_pipelines(record, 0)
    assert train.report.results == 3


def test_a_fed_loader_keeps_it_and_a_script_without_pipelines_has_no_such_file(play: Callable[..., Any]) -> None:
    record = play(LOADER, 1, mods=("loader=fast",)).well.record
    fed = read_pipelines(record, 0)
    assert [one.title for one in fed] == ["loader over TensorDataset"] * 2
    assert all("load" in [stage.name for stage in one.report.stages] for one in fed)
    again = play(LOADER, 1).well.record
    assert list(again.glob("pipelines*")) == []
