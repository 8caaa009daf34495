"""The same seams, attached to objects that a script hands over instead of found in it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from paceline.comm.group import Group
from paceline.record.logged import Logged, logged_path
from paceline.record.writer import StepWriter
from paceline.script.seams import instrument
from paceline.script.seams.stage import Stage
from paceline.settings import from_environment

_stage: Stage | None = None  # of this process, whoever made it
_folder: Path | None = None  # of its record
_pid = 0  # of the process that writes there: one that it forks does not
_writer: StepWriter | None = None
_leaving: list[Callable[[], None]] = []  # what is to be done before the stage is taken down


def take_stage(stage: Stage, folder: Path | None = None) -> None:
    """The stage of this process is this one: `attach` finds it instead of making its own."""
    global _stage, _folder, _writer, _pid
    _stage, _folder, _writer, _pid = stage, folder, None, os.getpid()
    _leaving.clear()


def current() -> Stage | None:
    """The stage of this process, where there is one."""
    return _stage


def in_own_process() -> bool:
    """Whether this is the process that the stage is of, and not one that it forked."""
    return os.getpid() == _pid


def folder() -> Path | None:
    """Of the record that this process writes to, where there is one."""
    return _folder if _stage is not None and in_own_process() else None


def before_leaving(callback: Callable[[], None]) -> None:
    """Called when the script has ended, however it did: for what a worker still has to write."""
    _leaving.append(callback)


def leave() -> None:
    """The script has ended. Called once, by whoever took the stage."""
    while _leaving:
        _leaving.pop()()


def log(**numbers: float) -> None:
    """Keeps numbers by name in the run's record: `paceline.log(accuracy=0.71, loss=1.2)`, once an epoch, say. Every
    worker may call it, rank 0 writes, nobody waits. In a script that runs without Paceline it does nothing."""
    global _writer
    if _stage is None or _folder is None or _stage.group.rank:
        return
    if _writer is None:
        _writer = StepWriter(logged_path(_folder))
    values = {name: float(number) for name, number in numbers.items()}
    kept = {name: number if math.isfinite(number) else None for name, number in values.items()}
    _writer.append(Logged(step=_stage.pulse.step, at=time.time(), numbers=kept))


def attach(strategy: Any, modules: list[nn.Module]) -> None:
    """Distributes these modules with this strategy. Every worker calls it; the first call connects the workers."""
    if _stage is None:
        settings = from_environment()
        stage = Stage(settings.run, Group(settings), only=modules)
        strategy.on_stage(stage)
        instrument.find(stage)
        take_stage(stage)
    elif _stage.only is not None:
        _stage.only.update(modules)
