"""The same seams, attached to objects that a script hands over instead of found in it."""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.comm.group import Group
from paceline.script import finding
from paceline.script.stage import Stage
from paceline.settings import from_environment

_stage: Stage | None = None  # of this process, whoever made it


def take_stage(stage: Stage) -> None:
    """The stage of this process is this one: `attach` finds it instead of making its own."""
    global _stage
    _stage = stage


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
