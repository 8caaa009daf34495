"""Averages of gradients whose parameters are divided: each worker has a part, and averages it with those that have the
same part.

A bucket holds plain tensors. A divided parameter is an object of another kind, so that a plain parameter stands in for
it: its gradient is the part that this worker holds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from paceline.strategies.mirrored import Mirrored
from paceline.torch_private import own_grad, set_own_grad


class PartGradients(Mirrored):
    """A strategy says what a part is by `_part_of`, `_part_of_grad` and `_grad_of`."""

    def __init__(self) -> None:
        super().__init__()
        # Parameter → a plain parameter whose gradient is the part's: what a bucket can hold.
        self._stand_ins: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def _is_divided(self, parameter: Any) -> bool:
        raise NotImplementedError

    def _part_of(self, parameter: Any) -> torch.Tensor | None:
        """This worker's part of a divided parameter; None if it has none."""
        raise NotImplementedError

    def _part_of_grad(self, grad: Any, parameter: Any) -> torch.Tensor:
        raise NotImplementedError

    def _grad_of(self, part: torch.Tensor, parameter: Any) -> torch.Tensor:
        """The parameter's gradient, with this part."""
        raise NotImplementedError

    def _meet(self, parameter: torch.Tensor, name: str = "") -> None:
        if not self._is_divided(parameter) or self._known.get(parameter) is not None:
            super()._meet(parameter, name)
            return
        part = self._part_of(parameter)
        if part is None or not parameter.requires_grad:
            self._known[parameter] = None
        else:
            stand_in = self._stand_ins[parameter] = nn.Parameter(part)
            self._known[parameter] = self._buckets.adopt(stand_in, name)
            self._handles[parameter] = parameter.register_post_accumulate_grad_hook(self._ready).id

    def _ready(self, parameter: torch.Tensor) -> None:
        stand_in = self._stand_ins.get(parameter)
        hooks = parameter._post_accumulate_grad_hooks
        if stand_in is None or self.stage.makes_samples() or (hooks is not None and len(hooks) > 1):
            super()._ready(parameter)
            return
        self._show(parameter, stand_in)
        self._buckets.ready(self._known[parameter], stand_in)

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        for parameter, stand_in in self._stand_ins.items():
            self._show(parameter, stand_in)
        super().before_backward(losses)

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        super().after_backward(losses)
        if not self._accumulation.kept_back:
            self._take_over()

    def _sum_kept_back(self) -> None:
        super()._sum_kept_back()
        self._take_over()

    def _show(self, parameter: Any, stand_in: nn.Parameter) -> None:
        """The stand-in has the gradient of the parameter's part: the same object if it lies in a bucket."""
        grad = own_grad(parameter)
        if grad is None:
            stand_in.grad = None
            return
        local = self._part_of_grad(grad, parameter)
        view = self._buckets.slots[self._known[parameter]].view
        same = view is not None and view.data_ptr() == local.data_ptr() and view.shape == local.shape
        stand_in.grad = view if same else local

    def _take_over(self) -> None:
        """The parameter has the gradient that the workers have averaged."""
        for parameter, stand_in in self._stand_ins.items():
            if stand_in.grad is None:
                continue
            grad = own_grad(parameter)
            if grad is None or self._part_of_grad(grad, parameter).data_ptr() != stand_in.grad.data_ptr():
                set_own_grad(parameter, self._grad_of(stand_in.grad, parameter))
