"""The optimizer for the op Adasum: the ranks' updates are combined, not their gradients.

Each rank steps the wrapped optimizer on its own gradient. The changes of the parameters are combined by Adasum, and
added to the parameters as they were before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.horovod.torch.averaged_gradients import IN_FLIGHT, TOO_MANY
from paceline.horovod.torch.mpi_ops import Adasum, allreduce_async_, synchronize
from paceline.horovod.torch.named_parameters import name_parameters


class AdasumUpdates:
    """What is added to the wrapped optimizer's class."""

    param_groups: list[dict[str, Any]]

    def _distribute(self, named_parameters: Any, compression: Any, backward_passes_per_step: int) -> None:
        self._parameter_names = name_parameters(self.param_groups, named_parameters)
        self._compression, self.backward_passes_per_step = compression, backward_passes_per_step
        self._passes_left = dict.fromkeys(self._parameter_names, backward_passes_per_step)
        self._handles: dict[torch.Tensor, tuple[int, Any]] = {}
        self._starts: dict[torch.Tensor, torch.Tensor] = {}
        self._requires_update = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in self._requires_update]

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._passes_left[parameter] <= 0:
            raise AssertionError(TOO_MANY)
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._submit(parameter)

    @torch.no_grad()
    def _submit(self, parameter: torch.Tensor) -> None:
        """Steps on this parameter alone, and sends its change. The parameter holds the change until `step`."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        self._starts[parameter] = start = parameter.detach().clone()
        stashed = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [p for p in group["params"] if p is parameter]
        try:
            super().step()  # type: ignore[misc]
        finally:
            for group, parameters in zip(self.param_groups, stashed, strict=True):
                group["params"] = parameters
        change = parameter.detach() - start
        parameter.copy_(start)
        small, context = self._compression.compress(change)
        name = self._parameter_names[parameter]
        self._handles[parameter] = allreduce_async_(small, name=name, op=Adasum), context

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients of so many backward passes are added up before a step."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._passes_left, passes)

    def synchronize(self) -> None:
        """Does nothing: the gradients stay each rank's own."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the combined changes, and adds them to the parameters."""
        loss = closure() if closure is not None else None
        for parameter in self._requires_update:
            if parameter not in self._handles:
                self._submit(parameter)
        with torch.no_grad():
            for parameter, (handle, context) in self._handles.items():
                parameter.copy_(self._starts[parameter] + self._compression.decompress(synchronize(handle), context))
                self._passes_left[parameter] = self.backward_passes_per_step
        self._handles.clear()
        return loss

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's, with set_to_none. AssertionError while changes are in flight."""
        if self._handles:
            raise AssertionError(IN_FLIGHT)
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
