"""Ghost batch norm: batch norm with the statistics of small virtual batches, however large the batch.

The noise of batch statistics helps training, and a batch of thousands has little of it. Here each run of `size`
consecutive samples (a ghost) is normalised on its own; running statistics, for evaluation, cover the whole batch. N
workers with batch b and unsynchronised batch norm compute the same as one worker with batch N·b and ghosts of b.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, TypeVar

from torch import Tensor, nn

from paceline.converge.ghost_bn.functional import Running, ghost_norm
from paceline.errors import UsageError
from paceline.script.proof.recorder import Recorder, norm
from paceline.torch_private import BatchNorm

SIZE = 32
M = TypeVar("M", bound=nn.Module)


class _Ghost(BatchNorm):
    """The base of the three classes. In eval mode, with running statistics, it is torch's batch norm."""

    size: int

    def __init__(self, num_features: int, size: int = SIZE, **settings: Any) -> None:
        super().__init__(num_features, **settings)
        self.size = _checked(size)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None and self.running_var is not None:
            return super().forward(input)
        if not input.numel():
            return super().forward(input)
        if input.numel() == input.shape[1]:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
        running = self._running()
        with norm() if Recorder.active is not None else nullcontext():
            return ghost_norm(input, self.weight, self.bias, running, size=self.size, eps=self.eps)

    def _running(self) -> Running | None:
        if not self.training or not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return None
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        return self.running_mean, self.running_var, momentum or 0.0

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, size={self.size}"


class GhostBatchNorm1d(_Ghost, nn.BatchNorm1d):
    """Batch norm of (N, C) or (N, C, L), over ghosts of `size` samples. Other settings are nn.BatchNorm1d's."""


class GhostBatchNorm2d(_Ghost, nn.BatchNorm2d):
    """Batch norm of (N, C, H, W), over ghosts of `size` samples. Other settings are nn.BatchNorm2d's."""


class GhostBatchNorm3d(_Ghost, nn.BatchNorm3d):
    """Batch norm of (N, C, D, H, W), over ghosts of `size` samples. Other settings are nn.BatchNorm3d's."""


KINDS: dict[type[nn.Module], type[_Ghost]] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
    nn.BatchNorm3d: GhostBatchNorm3d,
}


def ghost(model: M, size: int = SIZE) -> M:
    """Turns every batch norm of the model into a ghost batch norm, in place, and returns the model.

    Modules, parameters, running statistics and hooks stay the same objects, so an optimizer that holds the parameters
    stays valid. An existing ghost batch norm gets the new size. Batch norms of other classes (SyncBatchNorm, lazy ones,
    a library's own) are left alone; a model without any batch norm to change is an error.
    """
    size, changed, others = _checked(size), 0, set()
    for module in model.modules():
        kind = KINDS.get(type(module))
        if kind is not None:
            module.__class__ = kind
        if isinstance(module, _Ghost):
            module.size = size
            changed += 1
        elif isinstance(module, BatchNorm):
            others.add(type(module).__name__)
    if not changed:
        found = f"only {', '.join(sorted(others))}" if others else "none"
        raise UsageError(
            f"The {type(model).__name__} has no nn.BatchNorm1d, 2d or 3d for ghost batch norm; found: {found}.",
            advice="Leave ghost batch norm out: other norms (layer, group) do not depend on the batch.",
        )
    return model


def _checked(size: int) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(
            f"A ghost of {size!r} samples is not valid: the size must be a whole number, at least 1.",
            advice=f"Use the usual size: {SIZE}",
        )
    return size
