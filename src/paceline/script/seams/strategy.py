"""What a strategy is: how the workers of a run share the work of a model's calls, its parameters and its updates.

The methods below are all that a stage asks of a strategy; the defaults are those of one device, on which nothing is
shared. A strategy also subscribes to seams (see `stage`), like a mod. Every worker calls each method in the same order,
so that a method may use collectives, unless the strategy is not in lockstep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from paceline.comm.axes import Axes
from paceline.script.seams.membership import Membership


class Strategy:
    """One device: every worker does all of the work."""

    name: ClassVar[str] = "one"
    lockstep: ClassVar[bool] = True  # False: workers go at their own pace; there is no gather and no comparison
    whole_models: ClassVar[bool] = True  # each worker can compute a model's call alone
    stage: Any  # a Stage, whose file imports this one

    def axes(self, workers: int) -> Axes:
        """How this many workers are laid out. `UsageError` if they cannot be."""
        return Axes(data=workers)

    def on_stage(self, stage: Any) -> None:
        """Joins a run, before the script starts."""
        self.stage, stage.strategy = stage, self

    def place(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """A root module is about to be called for the first time: puts its parameters where they belong. `optimizers`
        are those that exist already; their parameters are exchanged if the module's are."""

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module: rows over the axes `data` and `shard`, and outputs stay sharded."""
        return self.stage.views.call(plain, module, args, kwargs)

    def step(self, plain: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """An optimizer's outermost step, between the seams before_step and after_step."""
        return plain(optimizer, *args, **kwargs)

    def full(self, part: Any) -> Any:
        """The whole of a parameter, a gradient, a buffer or a tensor of an optimizer's state, or of a module, for
        saving and printing. What is whole already is returned as it is."""
        return part

    def watch_gradients(self, watcher: Any) -> None:
        """From now on the watcher (see `comm.buckets`) sees gradients before and after they are averaged. Nothing to
        see where nothing is averaged."""

    def on_enough(self) -> None:
        """The run ends before the script does, after the same step on all workers."""

    def on_membership(self, change: Membership) -> None:
        """Workers were lost, and the others go on without them (an elastic run): rank, number of workers and who
        computes which rows are new. Only under a strategy whose entry in the catalog says "shrink"; under the others
        the run ends, or the lost worker is ignored. Every worker that is left calls it, without collectives: the work
        in which the worker was lost is not done again yet."""

    def told(self) -> dict[str, Any] | None:
        """What the strategy has tuned, for the record; None if nothing."""
        return None
