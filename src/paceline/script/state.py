"""The part of a stage that other files use. A protocol, so that those files need not import the stage."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import nn

from paceline.comm.group import Group
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.script.together import Together
from paceline.settings import RunSettings


class StageState(Protocol):
    """See `Stage.__init__` for each attribute."""

    run: RunSettings
    group: Group
    rows: Group
    watch: Stopwatch
    pulse: Pulse
    together: Together
    views: Any
    aside: bool
    depth: int
    backward_depth: int
    roots: weakref.WeakSet[nn.Module]
    trained: weakref.WeakSet[nn.Module]
    has_loader: bool

    def makes_samples(self) -> bool: ...

    def as_script(self) -> AbstractContextManager[None]: ...

    def inside(self) -> AbstractContextManager[None]: ...
