"""The backward of a pipelined call, as the script's graph sees it.

The script's loss is computed from outputs that every worker holds. Their gradient is the same on every worker, and
starts the backward of the stages. Each stage finds the gradients of its own parameters, and all workers get all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.rows import crossings
from paceline.script.rows.origins import note_apart
from paceline.script.seams.stage import Stage
from paceline.spread.stage_tensor import StageTensor, leaf_of, memory_of, whole
from paceline.strategies.pipelined.failure import Failure
from paceline.strategies.pipelined.schedule import Clock, Pass, Schedule
from paceline.torch_private import keeps_graph

SUM = "the gradients of the stages"


@dataclass(slots=True)
class StagedModel:
    """A model in stages, on this worker."""

    schedule: Schedule
    parameters: list[nn.Parameter]  # all, in the same order on every worker
    mine: list[int]  # numbers of those that this stage uses
    proven: set[bool]  # modes (training or not) in which the stages were compared with the whole model
    parts: list[Any]  # its modules and parameters: see `parts_of`


def parts_of(module: nn.Module) -> list[Any]:
    """The modules and parameters of a model, which the script may replace."""
    found = [part for inner in module.modules() for part in (inner, *inner._parameters.values())]
    return found[1:]  # without the model itself, which must not be kept alive


def are_same(parts: list[Any], others: list[Any]) -> bool:
    return len(parts) == len(others) and all(one is other for one, other in zip(parts, others, strict=True))


@dataclass(slots=True)
class WayBack:
    """From the output of one call back to its inputs and to the parameters. Every worker goes it."""

    stage: Stage
    model: StagedModel
    done: Pass
    leaves: Sequence[Any]  # of the call's arguments
    cuts: Sequence[int]  # those that were cut into rows
    sizes: Sequence[int]  # of the micro-batches
    dim: int
    gathered: Sequence[Any] = ()  # parameters, as `Team.gathered` has made them for the call

    @property
    def inputs(self) -> list[int]:
        """The arguments that need a gradient."""
        return [n for n, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

    def output(self) -> Any:
        """The call's output, with its graph."""
        function = crossings.named(_Pipelined, self.done.name) if self.done.name else _Pipelined
        whole = function.apply(self, *(self.leaves[n] for n in self.inputs), *self.model.parameters)
        apart = [tensor for tensor in whole if tensor.requires_grad]
        for tensor in apart if len(apart) > 1 else ():
            note_apart(tensor, lambda: True, "under --strategy pipeline")
        new = dict(zip(map(id, self.done.tensors), whole, strict=True))
        return tree.replace(self.done.output, lambda leaf: new.get(id(leaf), leaf))

    def back(self, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of the inputs and of all parameters."""
        if not self.done.chunks:
            raise RuntimeError(
                "Trying to backward through the graph a second time. Specify retain_graph=True if you need to backward "
                "through the graph a second time."
            )
        model, schedule = self.model, self.model.schedule
        wanted = [grad for grad, needs in zip(grads, self.done.needs_grad, strict=True) if needs]
        mine = [n for n in model.mine if model.parameters[n].requires_grad]
        keep = keeps_graph()
        failure = Failure(schedule.rows)
        with schedule.team.gathered(model.parameters, self.gathered):
            with self.stage.inside():
                own, of_inputs = schedule.backward(
                    self.done, wanted, [leaf_of(model.parameters[n]) for n in mine], self.dim, failure, keep=keep
                )
            return self._all(own, of_inputs, mine, failure, keep=keep)

    def _all(
        self,
        own: Sequence[torch.Tensor | None],
        of_inputs: Sequence[Sequence[torch.Tensor | None]],
        mine: Sequence[int],
        failure: Failure,
        *,
        keep: bool,
    ) -> list[torch.Tensor | None]:
        """The gradients of the inputs and of all parameters, from those that this worker has found."""
        model, schedule = self.model, self.model.schedule
        if not keep:
            self.done.chunks = {}
        found: list[torch.Tensor | None] = [None] * len(model.parameters)
        for number, grad in zip(mine, own, strict=True):
            found[number] = grad
        inputs = self.inputs
        joined = [None if failure else self._joined(n, [row[i] for row in of_inputs]) for i, n in enumerate(inputs)]
        likes = [*(self.leaves[n] for n in inputs), *model.parameters]
        return summed(schedule.group, [*joined, *found], likes, failure, schedule.clock, parts_of=schedule.rows)

    def _joined(self, number: int, column: list[torch.Tensor | None]) -> torch.Tensor | None:
        """The gradient of an argument, from its micro-batches."""
        given = [grad for grad in column if grad is not None]
        if not given or len(column) == 1:
            return given[0] if given else None
        if number not in self.cuts:
            return torch.stack(given).sum(0)
        shape = list(self.leaves[number].shape)
        parts = [
            given[0].new_zeros([*shape[: self.dim], size, *shape[self.dim + 1 :]]) if grad is None else grad
            for grad, size in zip(column, self.sizes, strict=True)
        ]
        return torch.cat(parts, self.dim)


class _Pipelined(Function):
    """The outputs of the pipeline: their backward is that of the stages."""

    @staticmethod
    def forward(ctx: Any, way: WayBack, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.way, done = way, way.done
        ctx.mark_non_differentiable(*(t for t, needs in zip(done.tensors, done.needs_grad, strict=True) if not needs))
        ctx.set_materialize_grads(False)
        return tuple(done.tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise ScriptError(
                "The script asks for gradients of gradients (create_graph=True), which do not go through a pipeline.",
                advice="Choose another strategy: --strategy mirrored",
            )
        return None, *ctx.way.back([None if grad is None else whole(grad) for grad in grads])


def summed(
    group: Group,
    grads: list[torch.Tensor | None],
    likes: Sequence[torch.Tensor],
    failure: Failure,
    clock: Clock,
    rows: Group | None = None,
    parts_of: Group | None = None,
) -> list[torch.Tensor | None]:
    """The sums over the workers; None where no worker has a gradient. Those of a stage's own parameters stay with the
    stage, and are summed over its replicas, `rows`, if these are in the group. `parts_of`: the replicas, which hold the
    parts of a parameter: its gradient is averaged here, because each replica keeps another part. If a worker has
    failed, all raise."""
    has = torch.tensor([bool(failure), *(grad is not None for grad in grads)], dtype=torch.int32, device="cpu")
    since = time.perf_counter()
    group.all_reduce(has, SUM)
    waited = time.perf_counter() - since  # for the stages that are not done yet
    clock.idle, clock.total = clock.idle + waited, clock.total + waited
    if has[0]:
        failure.raise_first(group.gather_objects(failure.told, "the failure of a stage"))
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    reached = has[1:].tolist()
    of_parts = any(isinstance(like, StageTensor) and like.team.inside.gathers(like) for like in likes)
    if parts_of is not None and of_parts:  # a parameter that only another replica has used gets zeros here
        parts_of.all_reduce(has, SUM)
        is_stages = [isinstance(like, StageTensor) for like in likes]
        counts = zip(is_stages, has[1:].tolist(), reached, strict=True)
        reached = [everywhere if is_stage else here for is_stage, everywhere, here in counts]
    for number in [number for number, count in enumerate(reached) if count]:
        like = likes[number]
        if isinstance(like, StageTensor):
            own = grads[number]
            if like.value is not None:
                is_part = like.team.inside.gathers(like)
                own = torch.zeros_like(leaf_of(like)) if own is None else own
                over = parts_of if is_part and parts_of is not None else rows
                if over is not None:
                    own = own.contiguous()
                    over.all_reduce(memory_of(own), SUM)
                if is_part:
                    memory_of(own).div_(1 if parts_of is None else parts_of.world)
                    own = like.team.inside.own_part(own, like)
            grads[number] = like.team.made(own, like, like.owner, like.device)
            continue
        kinds.setdefault((likes[number].dtype, likes[number].device), []).append(number)
    for numbers in kinds.values():
        parts = [torch.zeros_like(likes[n]) if (grad := grads[n]) is None else grad for n in numbers]
        flat = torch.cat([part.reshape(-1) for part in parts])
        group.all_reduce(flat, SUM)
        for n, values in zip(numbers, flat.split([likes[n].numel() for n in numbers]), strict=True):
            grads[n] = values.view(likes[n].shape).clone()
    return grads
