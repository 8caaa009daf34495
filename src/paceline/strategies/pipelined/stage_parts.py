"""What a worker of a pipeline keeps of parameters and gradients, as saving and the average over replicas see it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from paceline.script.seams.stage import Stage
from paceline.spread.stage_numbers import settled
from paceline.spread.stage_tensor import StageTensor, assign_whole_data, memory_of
from paceline.strategies.part_gradients import PartGradients
from paceline.strategies.pipelined.holding import Holding
from paceline.strategies.whole import save_whole
from paceline.torch_private import is_dtensor, parameters_in


class StageParts(PartGradients):
    """Parameters of a stage are whole in files, and averaged over the replicas of the stage."""

    divided = (StageTensor,)
    holding: Holding

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        save_whole(stage)
        assign_whole_data()

    def full(self, part: Any) -> Any:
        if isinstance(part, nn.Module):
            held = [p for p in parameters_in(part) if isinstance(p, StageTensor)]
            return copy.deepcopy(part, {id(p): self.full(p) for p in held}) if held else part
        if not isinstance(part, StageTensor):
            return settled(part)
        part.team.lent.write_back(arrays=True)
        return part.plain()

    def part(self, value: torch.Tensor, like: Any) -> torch.Tensor:
        """What this worker keeps of a whole tensor."""
        return self.holding.part(value, like) if isinstance(like, StageTensor) else value

    # -- gradients, averaged over the replicas -------------------------------------------------------------------------

    def _is_divided(self, parameter: Any) -> bool:
        return isinstance(parameter, StageTensor)

    def _part_of(self, parameter: Any) -> torch.Tensor | None:
        if parameter.value is None or parameter.team.inside.gathers(parameter):  # the way back averages these
            return None
        return memory_of(parameter.value).detach()

    def _part_of_grad(self, grad: Any, parameter: Any) -> torch.Tensor:
        value: Any = grad.value if isinstance(grad, StageTensor) else grad
        return memory_of(value)

    def _grad_of(self, part: torch.Tensor, parameter: Any) -> torch.Tensor:
        if not is_dtensor(parameter.value):
            return self.holding.part(part, parameter)
        from paceline.spread.dtensors import like  # DTensor takes long to import

        made: torch.Tensor = parameter.team.made(
            like(part, parameter.value), parameter, parameter.owner, parameter.device
        )
        return made
