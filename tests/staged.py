"""A stage in a worker of the pool, set as `perform` sets it and taken down again, and what it told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.comm.group import Group
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.script.seams import instrument
from paceline.script.seams.stage import Stage
from paceline.script.seams.strategy import Strategy
from paceline.settings import RunSettings, WorkerSettings
from paceline.strategies.mirrored import Mirrored


@contextmanager
def staged(
    group: Group,
    strategy: Strategy | None = None,
    *,
    listeners: tuple[object, ...] = (),
    sliced: bool = False,
    **run: Any,
) -> Iterator[Stage]:
    """The seams of torch call into this stage until the block ends. `stage.notices` is what a person would read.
    `sliced`: as the mod view=slice. The strategy is Mirrored unless another is given."""
    strategy = strategy or Mirrored()
    notices: list[str] = []
    group.watch, group.pulse = Stopwatch(), Pulse(lambda text, mod: notices.append(text))
    stage = Stage(RunSettings(**{"script": "", "workers": group.world} | run), group, strategy)
    stage.notices = notices  # type: ignore[attr-defined]
    stage.views.is_sliced = sliced
    strategy.on_stage(stage)
    for listener in listeners:
        stage.subscribe(listener)
    lose = instrument.find(stage)
    try:
        torch.manual_seed(0)
        yield stage
    finally:
        lose()
        if "grad" in vars(torch.Tensor):  # guarded by a strategy
            del torch.Tensor.grad


def lone_group() -> Group:
    """A group of one, for what needs no other worker."""
    return Group(WorkerSettings(run=RunSettings(script=""), record=""))
