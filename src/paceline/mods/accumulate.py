"""Accumulate: a model's call in K micro-batches, each recomputed in backward. Less memory, the same numbers.

Changes: memory against time: only one micro-batch's activations are in memory at a time, and each is computed twice.
Applies to training calls whose outputs have a row for each sample, or are means over samples; other calls are refused.
Can break: batch norm, which sees one micro-batch (and updates its running statistics for each); dropout draws other
random numbers than on the whole batch. The smaller the micro-batches, the lower the throughput.

By hand:

    for x, y in zip(images.chunk(K), labels.chunk(K)):
        loss = F.cross_entropy(model(x), y) * len(x) / len(images)
        loss.backward()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from paceline.mods.support import micro_batches
from paceline.mods.support.micro_batches import MicroBatchPlan
from paceline.mods.support.recompute import Recomputed
from paceline.script import tree
from paceline.script.seams.stage import Stage
from paceline.torch_private import BatchNorm


class ModelState:
    """The state of one model."""

    def __init__(self) -> None:
        self.recomputed = Recomputed()
        self.plans: dict[Hashable, MicroBatchPlan | None] = {}


class Mod:
    """Wraps the training calls of every model; with several workers, each worker's sliced call."""

    def __init__(self, value: str) -> None:
        self.parts = int(value)
        self._known: weakref.WeakKeyDictionary[nn.Module, ModelState] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
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
            known = self._known.setdefault(module, ModelState())
            plan = self._plan(plain, module, known, given, leaves)
            parts = 1 if plan is None else min(self.parts, plan.batch(leaves), *self._slices())
            if plan is None or parts < 2:
                return plain(module, *args, **kwargs)
            sizes = micro_batches.sizes_of(plan.batch(leaves), parts)
            left = micro_batches.tensors_in(module) if plan.calls == 1 else {}
            outputs = [
                known.recomputed(module, plain, (module, *args), kwargs)
                for args, kwargs in micro_batches.cut(given, leaves, plan.cuts, sizes)
            ]
            if plan.calls == 1:
                self._check(module, left)
            return micro_batches.join(outputs, plan.outputs, sizes)

        return call

    def _plan(
        self, plain: Callable[..., Any], module: nn.Module, known: ModelState, given: Any, leaves: list[Any]
    ) -> Any:
        kind = tree.structure(given), tuple(map(_kind, leaves))
        plan = known.plans.get(kind)
        if plan is not None:
            plan.calls += 1
        if kind not in known.plans or (plan is not None and (plan.is_due or not plan.fits(leaves))):
            calls = 1 if plan is None else plan.calls
            plan = micro_batches.prove(plain, module, given, self.parts, self.stage.run.batch_dim)
            if plan is not None:
                plan.calls = calls
            known.plans[kind] = plan
        return plan

    def _check(self, module: nn.Module, left: dict[str, torch.Tensor]) -> None:
        for name, tensor in micro_batches.tensors_in(module).items():
            if tensor is not left.get(name):
                why = f"its attribute {name} keeps a tensor, which would hold the last micro-batch only"
                raise micro_batches.refusal(module, self.parts, why)

    def _slices(self) -> list[int]:
        """The number of rows of each worker, including borrowed rows. All workers must make the same number of
        micro-batches, because batch norms over the whole batch call collectives in each."""
        split = self.stage.views.split
        return [] if split is None else [max(1, size) for size in split.sizes]


def _kind(leaf: Any) -> Any:
    return (leaf.dim(), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)
