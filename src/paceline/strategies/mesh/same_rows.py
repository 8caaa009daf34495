"""Workers that all compute the same rows (one worker on the axis data): no gradient is averaged between them.

Their weights are rank 0's at the first call. `model_agreement` compares what they do afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.coalesced import broadcast_all
from paceline.script.seams.stage import Stage
from paceline.strategies.mesh import entering
from paceline.strategies.mesh.sharded_parameter import is_sharded, split_state
from paceline.torch_private import parameters_in


class SameRows:
    """All workers compute the same rows: there is no gradient to average, only weights to split."""

    def __init__(self, stage: Stage, split: Callable[[nn.Module], None]) -> None:
        """`split` splits the parameters of a root module."""
        self._stage, self._split = stage, split
        self._met: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def on_model(self, module: nn.Module) -> None:
        if self._stage.aside:
            return
        tensors = (*parameters_in(module), *module.buffers())
        plain = [tensor for tensor in tensors if tensor not in self._met and not (is_sharded(tensor) or tensor.is_meta)]
        broadcast_all(self._stage.group, plain, "the model's weights")
        self._split(module)
        self._met.update(dict.fromkeys(parameters_in(module)))

    def before_forward(self, module: nn.Module) -> None:
        if any(parameter not in self._met for parameter in parameters_in(module)):  # added since the first call
            self.on_model(module)

    def before_step(self, optimizer: Any) -> None:
        split_state(optimizer, entering.note)
