"""A pipeline in a run of Paceline's: its batches pass the loader's seam, and its time is that of data."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from staged import lone_group, staged

import paceline.data as pd
from paceline.script.seams import api


class Looks:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_batch(self, batch: Any) -> None:
        self.seen.append(batch)


def test_batches_pass_the_seam_and_waiting_for_them_is_data(monkeypatch: Any) -> None:
    looks = Looks()
    with staged(lone_group(), listeners=(looks,)) as stage:
        monkeypatch.setattr(api, "_stage", stage)
        phases: list[str] = []

        def look(number: int) -> int:
            phases.append(stage.watch.phase)
            return number

        found = [batch.tolist() for batch in pd.items(list(range(6))).map(look, kind="here").batch(2)]
        assert stage.watch.phase == "other"
    assert found == [[0, 1], [2, 3], [4, 5]]
    assert [batch.tolist() for batch in looks.seen] == found
    assert set(phases) == {"data"}


SCRIPT = """
import torch, paceline, paceline.data as pd
from torch import nn

x = torch.arange(40.0).view(40, 1) / 40
loader = pd.arrays(x, x * 2).shuffle(seed=1).batch(8)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for inputs, targets in loader:
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(round(loss.item(), 5))
"""


def steps_of(group: Any, folder: str) -> Any:
    """The script's losses on each worker of a group, as `strategy.distribute` would run it."""
    with staged(group) as stage:
        api.take_stage(stage)
        try:
            printed: list[float] = []
            exec(SCRIPT, {"__name__": "script", "print": printed.append})
            return printed
        finally:
            api._stage = None


def orders_of(group: Any) -> Any:
    """What a worker sees of pipelines that would differ from worker to worker, were they run alone."""
    with staged(group) as stage:
        api.take_stage(stage)
        try:
            late = threading.Event()

            def wait(number: int) -> int:
                # The first job is done last: alone, any other would be given first.
                if number == 0:
                    late.wait(60)
                elif number == 3:
                    late.set()
                return number

            free = pd.items(list(range(6))).map(wait, kind="threads", parallel=2, deterministic=False)
            seen = list(free)
            free.close()
            return seen, [batch.tolist() for batch in pd.items(list(range(6))).batch(2).shard()]
        finally:
            api._stage = None


def test_workers_that_run_as_one_see_the_same_batches_in_the_same_order(pool: Any) -> None:
    for seen, part in pool(2).run(orders_of):
        assert seen == list(range(6))
        assert part == [[0, 1], [2, 3], [4, 5]]


def test_the_same_numbers_on_two_workers(pool: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    alone = steps_of(lone_group(), str(tmp_path))
    for losses in pool(2).run(steps_of, str(tmp_path)):
        assert losses == alone
