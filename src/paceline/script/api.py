"""The same seams, attached to objects that a script hands over instead of found in it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from torch import nn

from paceline.comm.group import Group
from paceline.record.logged import Logged, logged_path
from paceline.record.writer import StepWriter
from paceline.script import finding
from paceline.script.stage import Stage
from paceline.settings import from_environment

_stage: Stage | None = None  # of this process, whoever made it
_folder: Path | None = None  # of its record
_writer: StepWriter | None = None


def take_stage(stage: Stage, folder: Path | None = None) -> None:
    """The stage of this process is this one: `attach` finds it instead of making its own."""
    global _stage, _folder, _writer
    _stage, _folder, _writer = stage, folder, None


def current() -> Stage | None:
    """The stage of this process, where there is one."""
    return _stage


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
        finding.find(stage)
        take_stage(stage)
    elif _stage.only is not None:
        _stage.only.update(modules)
