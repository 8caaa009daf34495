"""Which worker of a pipeline holds which parameters: each stage keeps its own, and the others free theirs.

A parameter stays whole on every worker if several workers use it (an embedding that is the head, too; what the model's
forward uses outside of modules), if it is frozen, or if a graph or a hook of the script refers to it at the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.agreement.updates import Operands
from paceline.comm.group import Group
from paceline.spread.stage_numbers import Number, Numbers, settled
from paceline.spread.stage_tensor import StageTensor, Team, give, take_back, whole
from paceline.strategies.owned_state import own_state


class Holding:
    """The parameters of all models, on one worker of a pipeline."""

    def __init__(self, group: Group) -> None:
        self.group, self.operands = group, Operands((StageTensor, Number))
        self.numbers = Numbers(group, group.post("numbers"))
        self.team = Team(group, self.operands.note, self.numbers)

    def divide(
        self,
        owners: Mapping[nn.Parameter, Sequence[int]],
        optimizers: Sequence[torch.optim.Optimizer],
        known: Any,
    ) -> tuple[int, int]:
        """Gives each parameter to the worker that alone uses it, given the workers that do. `known`: parameters whose
        gradients are averaged already. Returns the bytes that this worker keeps, and those of all. Every worker of the
        pipeline calls it."""
        moved = [p for p, workers in owners.items() if isinstance(p, StageTensor) and {*workers} != {p.owner}]
        self.gather(moved, optimizers)
        with torch.inference_mode(False):  # the first call may be an evaluation
            for parameter, workers in owners.items():
                if len({*workers}) == 1 and parameter not in known and _may_be_given(parameter):
                    give(parameter, workers[0], self.team)
        total = sum(p.nbytes for p in owners)
        return sum(p.kept if isinstance(p, StageTensor) else p.nbytes for p in owners), total

    def gather(self, parameters: Sequence[Any], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """These parameters are whole again on every worker, with their gradients and the optimizers' state. Every
        worker of the pipeline calls it."""
        held = [p for p in parameters if isinstance(p, StageTensor)]
        gathered = set(map(id, held))
        take_back(held)
        for optimizer in optimizers if held else ():
            for parameter, state in own_state(optimizer).items():
                if id(parameter) in gathered:
                    state.update({key: whole(v) for key, v in state.items() if isinstance(v, StageTensor)})

    def keep_own_state(self, optimizer: Any) -> None:
        """Tensors of an optimizer's state that were made, or loaded, whole are kept by the parameter's owner only."""
        for parameter, state in own_state(optimizer).items():
            if isinstance(parameter, StageTensor) and isinstance(state, dict):
                for key, value in state.items():
                    is_tensor = isinstance(value, torch.Tensor) and not isinstance(value, StageTensor)
                    if is_tensor and value.dim() and value.shape == parameter.shape:
                        state[key] = self.team.owned(value, parameter.owner, parameter)

    def settle_gradient(self, parameter: torch.Tensor) -> None:
        """A gradient that every worker has computed (of a penalty) is kept by the parameter's owner only. One that a
        stage has computed for a parameter of all workers is sent to all."""
        grad = parameter.grad
        if isinstance(grad, Number) and not grad.requires_grad:
            grad = parameter.grad = settled(grad)
        if grad is None or isinstance(grad, StageTensor) == isinstance(parameter, StageTensor) or grad.requires_grad:
            return
        parameter.grad = self.part(grad, parameter) if isinstance(parameter, StageTensor) else whole(grad)

    def part(self, value: torch.Tensor, like: Any) -> torch.Tensor:
        """What this worker keeps of a whole tensor."""
        if not isinstance(like, StageTensor) or isinstance(value, StageTensor):
            return value
        return self.team.owned(settled(value).to(like.device), like.owner, like)


def _may_be_given(parameter: Any) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and parameter.layout is torch.strided
        and not (is_lazy(parameter) or parameter.is_meta)
        and not parameter._backward_hooks
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
        and parameter._use_count() == 1  # type: ignore[attr-defined]
    )
