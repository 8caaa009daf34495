"""Accumulate: a model's call in K micro-batches, each recomputed in backward. Less memory, the same numbers.

Changes: memory against time: only one micro-batch's activations are in memory at a time, and each is computed twice.
Applies to training calls whose outputs have a row for each sample, or are means or sums over samples, which is proven
operation by operation; other calls are refused.
Can break: batch norm, which sees one micro-batch (and updates its running statistics for each); dropout draws other
random numbers than on the whole batch. The smaller the micro-batches, the lower the throughput.

By hand:

    for x, y in zip(images.chunk(K), labels.chunk(K)):
        loss = F.cross_entropy(model(x), y) * len(x) / len(images)
        loss.backward()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.mods.support import micro_batches
from paceline.mods.support.micro_batches import MicroBatches
from paceline.mods.support.recompute import Recomputed
from paceline.script import tree
from paceline.script.proof.arguments import versions_of
from paceline.script.proof.plan import SlicePlan
from paceline.script.proof.plans import Plans
from paceline.script.proof.recorder import CannotTry
from paceline.script.seams.stage import Stage
from paceline.script.slicing.parts import sizes_of
from paceline.torch_private import BatchNorm


class Mod:
    """Wraps the training calls of every model; with several workers, each worker's sliced call."""

    def __init__(self, value: str) -> None:
        self.parts = int(value)
        self._recomputed: weakref.WeakKeyDictionary[nn.Module, Recomputed] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage, self._plans = stage, Plans(MicroBatches(stage, self.parts).prove)
        stage.views.own_draws = True  # a micro-batch is no slice of the batch: its draws have no place in one process's
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if any(isinstance(child, BatchNorm) for child in module.modules()):
            self.stage.pulse.notice(
                f"accumulate: batch norm sees each of the {self.parts} micro-batches separately, so numbers differ."
            )

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not (torch.is_grad_enabled() and module.training):
                return plain(module, *args, **kwargs)
            given = (args, kwargs)
            leaves = tree.leaves(given)
            plan = self._plans.of(module, given, leaves)
            parts = 1 if plan is None else min(self.parts, plan.batch(leaves), *self._slices())
            if plan is None or parts < 2:
                return plain(module, *args, **kwargs)
            try:
                return self._compute(plain, module, given, leaves, plan, parts)
            except CannotTry as why:
                raise micro_batches.refusal(module, self.parts, str(why)) from None

        return call

    def _compute(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        plan: SlicePlan,
        parts: int,
    ) -> Any:
        sizes, versions = sizes_of(plan.batch(leaves), parts), versions_of(leaves, plan.cuts)
        compute = self._recomputed.setdefault(module, Recomputed())
        with self.stage.views.averages.inside() as averages:
            before = averages.count
            outputs = [
                compute(module, plain, (module, *args), kwargs)
                for args, kwargs in micro_batches.cut(given, leaves, plan.cuts, sizes)
            ]
            if plan.all_count and not averages.all_count():
                raise CannotTry("it adds another term to a mean over targets of which some are ignored or weighted")
            if versions != versions_of(leaves, plan.cuts):
                raise CannotTry("it changes an argument in place, from which backward computes again")
            return micro_batches.join(outputs, plan, sizes, averages, before)

    def _slices(self) -> list[int]:
        """The number of rows of each worker, including borrowed rows. All workers must make the same number of
        micro-batches, because batch norms over the whole batch call collectives in each."""
        split = self.stage.views.split
        return [] if split is None else [max(1, size) for size in split.sizes]
