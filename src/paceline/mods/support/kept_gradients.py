"""The gradients that a graph writes: always to the same memory, and handed out as the parameters' `.grad`.

A gradient that the script still holds is never overwritten: gradients that accumulate move to separate memory, and any
other use from outside is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.torch_private import address_of, count_uses

WITHOUT = "Leave the mod out: --mod cuda_graphs cannot be used with this script."
GRAD = attrgetter("grad")


class KeptGradients:
    """The gradients that one graph writes."""

    def __init__(self, parameters: list[nn.Parameter], room: list[torch.Tensor] | None = None) -> None:
        """Call it outside the capture: the memory pool of a graph is used again by its next launch, and gradients live
        longer. `room`: that of another graph, of which only one is launched in a step."""
        self._all = parameters
        self.room = [torch.empty_like(parameter) for parameter in parameters] if room is None else room

    def capture(self, found: Sequence[torch.Tensor | None]) -> None:
        """Inside the capture: the gradients as autograd found them, None for a parameter that it did not reach."""
        reached = [(place, grad) for place, grad in enumerate(found) if grad is not None]
        self.parameters = [self._all[place] for place, _ in reached]
        self.grads = [self.room[place] for place, _ in reached]
        torch._foreach_copy_(self.grads, [grad for _, grad in reached])

    def seal(self) -> None:
        """After all captures. A reference count above the present one means that the script holds a gradient."""
        self._storages = [address_of(grad.untyped_storage()) for grad in self.grads]
        self._counts = self._count()

    def _count(self) -> Any:
        return list(map(count_uses, self._storages)), list(map(getrefcount, self.grads))

    def let_go(self) -> None:
        """Before a launch: gradients that accumulate over several backwards move to separate memory."""
        if any(map(is_, map(GRAD, self.parameters), self.grads)):
            self._give_own_memory()
        if self._count() != self._counts:
            raise ScriptError("--mod cuda_graphs: the script keeps a gradient of an earlier step.", advice=WITHOUT)

    def _give_own_memory(self) -> None:
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            if parameter.grad is grad:
                parameter.grad = grad.clone()

    def hand_out(self) -> None:
        """After a launch: sets each parameter's gradient, or adds to it, as autograd does."""
        sums: list[torch.Tensor] = []
        added: list[torch.Tensor] = []
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            held = parameter.grad
            if held is None:
                parameter.grad = grad
            else:
                sums.append(held)
                added.append(grad)
        if sums:
            torch._foreach_add_(sums, added)

    def copies(self) -> list[torch.Tensor | None]:
        """After a launch: copies for autograd, one a parameter."""
        of = {id(parameter): grad for parameter, grad in zip(self.parameters, self.grads, strict=True)}
        return [None if (grad := of.get(id(parameter))) is None else grad.clone() for parameter in self._all]
