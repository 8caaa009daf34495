"""Which calls of a model may be computed in micro-batches of rows, and how the losses of micro-batches add up.

The proof is that of sliced calls (`script.proof`). It also finds which dimension of each random draw holds rows, so
that a micro-batch draws the numbers of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.draws.rows import DrawRule
from paceline.script.proof.arguments import unsharded
from paceline.script.proof.plan import Role, SlicePlan
from paceline.script.proof.plans import Plans
from paceline.script.proof.proof import Proof
from paceline.script.proof.reasons import name_of
from paceline.script.seams.stage import Stage
from paceline.strategies.pipelined.train_step import Asked
from paceline.strategies.pipelined.way_back import StagedModel
from paceline.torch_private import BatchNorm

FEW = 2  # rows on which the cut of a model into stages is proven


@dataclass(frozen=True, slots=True)
class Kind:
    """How calls of one kind are computed."""

    chunks: int = 1  # micro-batches
    plan: SlicePlan | None = None  # by which the outputs of micro-batches are combined
    has_rows: bool = False  # the rows of a batch may be split over the axis data
    has_norms: bool = False  # if they are, batch norms must see the whole batch

    @property
    def rules(self) -> tuple[DrawRule, ...]:
        """Of the model's random draws, in order."""
        return () if self.plan is None else self.plan.draws


class MicroBatches:
    """The kinds of calls of all models."""

    def __init__(self, stage: Stage, group: Group, chunks: int) -> None:
        """`group`: the workers of this worker's pipeline. `chunks`: micro-batches of a replica's batch."""
        self._stage, self._chunks = stage, chunks
        self._proof = Proof(group, stage.run.batch_dim, stage.views.draws, chunks * stage.rows.world)
        self._plans, self._losses = Plans(self._prove), Plans(self._prove_loss)

    def forget(self, module: nn.Module) -> None:
        self._plans.forget(module)

    def kind_of(self, module: nn.Module, model: StagedModel, given: Any, batch: int) -> Kind:
        """How to compute this call. Every worker calls it."""
        if (self._chunks < 2 and self._stage.rows.world == 1) or batch < 2:
            return Kind()
        plan = self._plans.of(module, given, tree.leaves(given))
        if plan is None:
            return Kind()
        leaves = tree.leaves(model.schedule.cutting.template)
        if not all(map(self._can_be_joined, plan.outputs, leaves)) or plan.is_idle:
            self._tell(module, "its output has no rows")
            return Kind()
        if any(isinstance(m, BatchNorm) and (m.training or not m.track_running_stats) for m in module.modules()):
            self._tell(module, "it has batch norm, which sees the whole batch")
            return Kind(has_rows=True, has_norms=True)
        return Kind(self._chunks, plan, has_rows=True)

    def _can_be_joined(self, role: Role, leaf: Any) -> bool:
        if not isinstance(leaf, torch.Tensor):
            return role.kind == "same"
        if role.kind in ("mean", "average", "sum"):
            return True
        return role.kind == "rows" and role.dim == self._proof.batch_dim and not role.spread

    def few(self, given: Any, rows: int) -> Any:
        """The arguments with a few rows of the batch."""
        leaves, dim = tree.leaves(given), self._proof.batch_dim
        batch, cuts = rows_of(leaves, dim)
        few = [
            leaf.detach().narrow(dim, 0, min(batch, rows)).clone() if number in cuts else leaf
            for number, leaf in enumerate(leaves)
        ]
        return tree.rebuild(given, iter(few))

    def _prove(self, module: nn.Module, given: Any, leaves: list[Any]) -> SlicePlan | None:
        plan, why = self._first(module, given)
        if plan is None:
            self._tell(module, why)
        return plan

    def _first(self, module: nn.Module, given: Any) -> tuple[SlicePlan | None, str]:
        views, dim, draws = self._stage.views, self._proof.batch_dim, self._stage.views.draws
        given, told = unsharded(given), set(draws.told)
        leaves = tree.leaves(given)
        _, cuts = rows_of(leaves, dim)
        with views.unsplit():
            plan, why = self._proof.first(views.own_call, module, given, leaves, [(cuts[0], dict.fromkeys(cuts, dim))])
        if new := draws.told - told:
            draws.told.intersection_update(told)
            return None, f"it has {min(new)}"
        return plan, why

    def _tell(self, module: nn.Module, why: str) -> None:
        self._stage.views.warn(
            f"The model {name_of(module)} is not cut into micro-batches, because {why}: its stages compute one "
            "after the other, and a pipeline of them is no faster than one worker."
        )

    # -- a loss inside the last stage ------------------------------------------------------------------------------

    def weigh(self, asked: Asked, kind: Kind, given: Any, sizes: Sequence[int]) -> tuple[Sequence[float], bool]:
        """By what the losses of micro-batches of these sizes are multiplied, so that their sum is the loss of the
        batch; and whether that holds only if all targets count. Every worker calls it."""
        if len(sizes) == 1:
            return [1.0], False
        given = ((given, asked.target), {})
        plan = self._losses.of(asked.step, given, tree.leaves(given))
        assert plan is not None
        (role,) = plan.outputs
        if len(plan.draws) > len(kind.rules):
            raise _refused_loss("it draws random numbers")
        if role.kind not in ("mean", "average", "sum"):
            raise _refused_loss("it has no row of the batch")
        is_sum = role.kind == "sum"
        weights = [float(size > 0) if is_sum else size / sum(sizes) for size in sizes]
        return weights, plan.all_count or role.kind == "average"

    def _prove_loss(self, step: nn.Module, given: Any, leaves: list[Any]) -> SlicePlan:
        plan, why = self._first(step, given)
        if plan is None:
            raise _refused_loss(why)
        return plan


def _refused_loss(why: str) -> ScriptError:
    return ScriptError(
        f"The loss of the batch is neither the mean nor the sum of the losses of its rows: {why}.",
        advice="Call the model and the loss in the script: distribute(…) without loss=",
    )


def rows_of(leaves: list[Any], dim: int) -> tuple[int, list[int]]:
    """The number of rows of the batch, and the leaves that have them."""
    shapes = {n: leaf.shape for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() > dim}
    batch = next((shape[dim] for shape in shapes.values()), 0)
    return batch, [number for number, shape in shapes.items() if shape[dim] == batch]
