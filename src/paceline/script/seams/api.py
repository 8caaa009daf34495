"""The Python API's way to the seams: attaches them to objects that a script hands over."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.record.logged import Logged, logged_path
from paceline.record.writer import StepWriter
from paceline.script.seams import instrument
from paceline.script.seams.stage import Stage
from paceline.script.seams.strategy import Strategy
from paceline.settings import RunSettings, of_this_process

_stage: Stage | None = None  # of this process: made by the worker's start-up or by `attach`
_folder: Path | None = None  # of its record
_pid = 0  # of the process that writes the record: its forks do not write
_writer: StepWriter | None = None
_leaving: list[Callable[[], None]] = []  # callbacks to run before the stage is taken down


def take_stage(stage: Stage, folder: Path | None = None) -> None:
    """Makes this the stage of the process: `attach` uses it instead of making its own."""
    global _stage, _folder, _writer, _pid
    _stage, _folder, _writer, _pid = stage, folder, None, os.getpid()
    _leaving.clear()


def current() -> Stage | None:
    """The stage of this process; None without one."""
    return _stage


def in_own_process() -> bool:
    """Whether this is the process that owns the stage, and not a fork of it."""
    return os.getpid() == _pid


def folder() -> Path | None:
    """The folder of the record that this process writes to; None without one."""
    return _folder if _stage is not None and in_own_process() else None


def before_leaving(callback: Callable[[], None]) -> None:
    """Registers a callback for the end of the script, also after an error: for files that a worker still has to
    write."""
    _leaving.append(callback)


def leave() -> None:
    """Runs the callbacks of `before_leaving`. Called once after the script, by the caller of `take_stage`."""
    while _leaving:
        _leaving.pop()()


def log(**numbers: float) -> None:
    """Writes numbers by name to the run's record, for example once per epoch: `paceline.log(accuracy=0.71, loss=1.2)`.
    Every worker may call it; only rank 0 writes, and no worker waits. Without Paceline it does nothing."""
    global _writer
    if _stage is None or _folder is None or _stage.group.rank:
        return
    if _writer is None:
        _writer = StepWriter(logged_path(_folder))
    values = {name: float(number) for name, number in numbers.items()}
    kept = {name: number if math.isfinite(number) else None for name, number in values.items()}
    _writer.append(Logged(step=_stage.pulse.step, at=time.time(), numbers=kept))


def attach(strategy: Strategy, objects: Sequence[Any]) -> None:
    """Distributes these objects with this strategy. Every worker calls it; the first call connects the workers."""
    modules = [thing for thing in objects if isinstance(thing, nn.Module)]
    global _stage
    if _stage is None:
        settings = of_this_process()
        take_stage(_distributing(strategy, modules, settings.run, Group(settings)))
        _hand_over(objects)
    elif (
        _stage.aside
    ):  # under `paceline run --as torchrun`, which only records: the script distributes itself, with this
        _stage = _distributing(strategy, modules, _stage.run, _stage.group)
        _hand_over(objects)
    elif _stage.only is not None:
        _stage.only.update(modules)
        _hand_over(objects)


def _hand_over(objects: Sequence[Any]) -> None:
    """Optimizers that the script made before the seams were there."""
    assert _stage is not None
    for thing in objects:
        if isinstance(thing, torch.optim.Optimizer) and thing not in _stage.optimizers:
            instrument.lead_steps(_stage, type(thing))
            _stage.meet_optimizer(thing)


def _distributing(strategy: Strategy, modules: list[nn.Module], run: RunSettings, group: Group) -> Stage:
    stage = Stage(run, group, strategy, only=modules)
    strategy.on_stage(stage)
    instrument.find(stage)
    return stage
