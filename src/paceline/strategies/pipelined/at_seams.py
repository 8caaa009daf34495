"""What a pipeline does at the seams, besides what `Mirrored` does for replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.agreement.updates import LossCheck, is_number
from paceline.comm.coalesced import broadcast_all
from paceline.spread.stage_tensor import StageTensor
from paceline.torch_private import parameters_in


class AtSeams:
    """What a pipeline does at the seams. Replicas also do there what Mirrored does."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline, self._stage, self._losses = pipeline, pipeline.stage, LossCheck()
        self._is_alone = pipeline.stage.rows.world == 1

    def on_model(self, module: nn.Module) -> None:
        """Broadcasts rank 0's weights and buffers at the first call."""
        if self._is_alone:
            tensors = [t for t in (*parameters_in(module), *module.buffers()) if not t.is_meta and not is_lazy(t)]
            tensors = [t for t in tensors if not isinstance(t, StageTensor)]  # a copy of a model that was cut
            broadcast_all(self._stage.group, tensors, "the model's weights")

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        self._pipeline.holding.numbers.settle()

    def around_iteration(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A dataset, or a loader's own process, may use a number, and other workers make other samples."""

        def begin(loader: Any) -> Any:
            self._pipeline.holding.numbers.settle()
            return plain(loader)

        return begin

    around_batch = around_iteration

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        """All workers must have computed the same loss. Replicas compare it with the gradients, before an update."""
        if not self._is_alone:
            return
        loss = losses[0]
        on_host = is_number(loss) and loss.device.type == "cpu"
        shown = torch.tensor(
            [float(loss.detach()) if on_host else self._losses.late(loss)], dtype=torch.float64, device="cpu"
        )
        found = self._stage.group.gather_vectors(shown, "the loss").flatten().tolist()
        self._losses.compare(found, late=not on_host)
        self._pipeline.settle_gradients()

    def on_end(self) -> None:
        self._pipeline.compare_operands()
        self._losses.end(self._stage.group)
        self._pipeline.tell_bubble()
        self._pipeline.holding.numbers.settle()
        self._pipeline.holding.numbers.close()
        self._pipeline.post.close()
