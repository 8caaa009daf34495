"""Compares what the workers of the axis model put into split weights, and the weights that each of them holds whole.

These workers compute the same rows, and each keeps a part of the split weights. A worker with another gradient, other
noise or another loss would give its part another update, and no loss would show it. So:

- Whatever the script puts into split tensors (operands, values written or loaded whole), and each loss, is folded into
  a few numbers (`operands`).
- Weights that are not split are compared as under `Mirrored`, from time to time (`agreement`).

Both ride on messages that are sent anyway: with the arguments of a model's call, so that no call uses a weight of which
the workers were given different values, and with the options of an update. Parts of split weights are compared along
the axis data, where they are copies, by `Mirrored`.

Every worker passes every seam in the same order. If a peer is gone, the message raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.agreement.compare import Agreement
from paceline.agreement.updates import Operands, compare_arguments, compare_options
from paceline.comm.group import Group
from paceline.script.seams.stage import Stage
from paceline.strategies.mesh import functions, operand_check
from paceline.strategies.mesh.fused_heads import FusedHeads
from paceline.strategies.mesh.sharded_parameter import ShardedParameter
from paceline.strategies.mesh.split_output import SplitOutput
from paceline.strategies.mirrored import AtEnd

SPLIT = (ShardedParameter, DTensor, SplitOutput, FusedHeads)


class ModelAgreement:
    """The comparison on one worker. `axis`: the workers of its axis model."""

    def __init__(self, stage: Stage, axis: Group, name_of: Callable[[nn.Module], str]) -> None:
        self._stage, self._operands = stage, Operands(SPLIT)
        # Seeds are compared once: along the axis data if there is one.
        self._weights = Agreement(stage, name_of, axis, of_parts=False, of_seeds=stage.rows.world == 1)
        self._members = list(stage.axes.members(stage.group.rank, "tensor"))
        self._has_model = False
        operand_check.connect(self._note)

    def _note(self, value: Any) -> None:
        """Not inside a model's call, whose activations are many: what differs there reaches the loss."""
        stage = self._stage
        if not (stage.depth or stage.aside or stage.makes_samples() or stage.is_elsewhere()):
            self._operands.note(value)

    # -- messages --------------------------------------------------------------------------------------------------

    def call(self, given: Any) -> None:
        """Before a model's call: compares its arguments, too. Every worker calls it; waits for all."""
        functions.write_back_arrays()
        self._compare(compare_arguments(given, self._stage.group, self._riders()))

    def before_step(self, optimizer: Any) -> None:
        functions.write_back_arrays()
        self._compare(compare_options(optimizer, self._stage.group, self._riders()))

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        self._weights.after_backward()
        if not self._stage.has_optimizer:  # the script makes its updates by hand
            self.exchange()

    def exchange(self) -> None:
        """A message of its own. Every worker calls it; waits for all."""
        mine = torch.tensor(self._riders(wait=True), dtype=torch.int64, device="cpu")
        self._compare(self._stage.group.gather_vectors(mine, "the comparison of updates"))

    def compare_last(self) -> None:
        """After the script's last step. Every worker calls it; waits for all."""
        if not self._stage.aside:
            functions.write_back_arrays()
            self._weights.on_end()
            self.exchange()

    def _riders(self, *, wait: bool = False) -> list[int]:
        return [*self._operands.shown(), *self._weights.riders(wait=wait)]

    def _compare(self, told: torch.Tensor) -> None:
        """Compares the rows of this worker's axis."""
        own = told[self._members]
        of_operands = Operands.WIDTH
        self._operands.judge(own[:, :of_operands])
        self._weights.compare(own[:, of_operands:].tolist())

    # -- seams -----------------------------------------------------------------------------------------------------

    def on_model(self, module: nn.Module) -> None:
        if not self._has_model:
            self._has_model = True
            self._stage.subscribe(AtEnd(self.compare_last))

    def on_end(self) -> None:
        """Compares seeds also without a model."""
        if not self._has_model and not self._stage.aside:
            self.exchange()

    def before_forward(self, module: nn.Module) -> None:
        self._weights.before_forward(module)

    def after_forward(self, module: nn.Module) -> None:
        self._weights.after_forward(module)

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        if not self._stage.views.batch_is_cut:
            self._note([loss.detach() for loss in losses])

    def after_step(self, optimizer: Any) -> None:
        self._weights.after_step(ends_step=True)

    def on_save(self, target: Any) -> None:
        if not self._stage.aside:
            functions.write_back_arrays()
            self._weights.on_save()
