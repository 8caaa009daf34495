"""Workers that all compute the same rows (one worker on the axis data): no gradient is averaged between them.

Their weights are rank 0's at the first call. The options of updates, and from time to time the weights that every
worker holds whole, are compared: a worker that goes another way would otherwise spoil the common result in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.coalesced import broadcast_all
from paceline.errors import PartedError
from paceline.script.seams.stage import Stage
from paceline.strategies.differing import WEIGHTS_ADVICE
from paceline.strategies.digest import sketch
from paceline.strategies.mesh.sharded_parameter import is_sharded, split_state
from paceline.strategies.owned.comparison import compare_options
from paceline.strategies.watched import is_due

ROUNDING = 1e-5  # of the squared norm: what kernels that add in any order may cause


class SameRows:
    """All workers compute the same rows: there is no gradient to average, only weights to split."""

    def __init__(self, stage: Stage, split: Callable[[nn.Module], None]) -> None:
        """`split` splits the parameters of a root module."""
        self._stage, self._split = stage, split
        self._met: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._steps = 0

    def on_model(self, module: nn.Module) -> None:
        if self._stage.aside:
            return
        tensors = (*module.parameters(), *module.buffers())
        plain = [tensor for tensor in tensors if tensor not in self._met and not (is_sharded(tensor) or tensor.is_meta)]
        broadcast_all(self._stage.group, plain, "the model's weights")
        self._split(module)
        self._met.update(dict.fromkeys(module.parameters()))

    def before_forward(self, module: nn.Module) -> None:
        if any(parameter not in self._met for parameter in module.parameters()):  # added since the first call
            self.on_model(module)

    def before_step(self, optimizer: Any) -> None:
        compare_options(optimizer, self._stage.group)
        split_state(optimizer)

    def after_step(self, optimizer: Any) -> None:
        self._steps += 1
        if is_due(self._steps):
            self._compare_weights()

    def on_end(self) -> None:
        if self._steps and not self._stage.aside:
            self._compare_weights()

    def _compare_weights(self) -> None:
        """PartedError if the workers hold different weights: of those that every worker holds whole. Every worker calls
        it; waits for all of them."""
        plain = [p for p in self._met if p.is_leaf and not (is_sharded(p) or p.is_meta or nn.parameter.is_lazy(p))]
        mine = torch.zeros(2, dtype=torch.float64, device="cpu")
        for parameter in plain:
            found = sketch(parameter)
            if found is not None:
                mine += found.cpu()
        told = self._stage.group.gather_vectors(mine, "the comparison of weights")
        if (told - told[0]).abs().max() > ROUNDING * max(told[:, 1].max().item(), 1e-30):
            raise PartedError(
                f"The workers of the axis model hold different weights after {self._steps} optimizer steps.",
                advice=WEIGHTS_ADVICE,
            )
