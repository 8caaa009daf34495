"""Gradient scaling for `precision=fp16`: small gradients of a half-precision forward do not underflow to zero.

The loss's gradient is multiplied by a power of two (the scale), and each leaf's gradient is divided by it. So `.grad`
is always unscaled, for clipping, printing, accumulating. A step with infinite gradients is skipped, and the scale
halves; the scale doubles after 2000 steps with finite gradients. All workers hold the same gradients, hence decide the
same.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.seams.stage import Stage, call_site
from paceline.strategies.mirrored import leaves_of, put_first
from paceline.torch_private import parameters_in

FIRST = 2.0**16
GROWTH = 2000  # consecutive steps with finite gradients before the scale doubles
SMALLEST = 1.0  # gradients that are infinite at this scale are infinite in the plain script, too


class Scaler:
    """One for all models and optimizers of a script."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.scale = FIRST
        self.skipped = 0
        self._used = FIRST  # the scale of the last backward
        self._at_work = False  # inside a backward; torch.autograd.grad is not scaled
        self._fine = 0  # steps with finite gradients since the last change of the scale
        self._first: weakref.ref[Any] | None = None  # the optimizer whose steps are counted
        self._met: WeakIdKeyDictionary = WeakIdKeyDictionary()  # leaves with an unscaling hook
        self._sites: set[int] = set()
        stage.subscribe(self)

    # -- backward --------------------------------------------------------------------------------------------------

    def before_forward(self, module: nn.Module) -> None:
        for parameter in parameters_in(module):
            self._meet(parameter)

    def meet_inputs(self, given: Any) -> None:
        """Hooks the leaves behind a model's inputs, which may be new at every step (adversarial examples)."""
        inputs = [leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for tensor in inputs:
            self._meet(tensor)
        for leaf, _ in leaves_of([tensor for tensor in inputs if not tensor.is_leaf]):
            self._meet(leaf)

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        site = call_site()
        if site not in self._sites:
            self._sites.add(site)
            for leaf, _ in leaves_of(losses):
                self._meet(leaf)

    def around_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grads: Any = None, **rest: Any) -> Any:
            losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            given = [grads] if isinstance(grads, torch.Tensor) else list(grads or [None] * len(losses))
            scaled = [
                torch.full_like(loss, self.scale) if grad is None else grad * self.scale
                for loss, grad in zip(losses, given, strict=True)
            ]
            self._at_work, self._used = True, self.scale
            try:
                return plain(losses, scaled, **rest)
            finally:
                self._at_work = False

        return backward

    def _meet(self, leaf: torch.Tensor) -> None:
        if leaf.is_leaf and leaf.requires_grad and leaf not in self._met:
            handle = leaf.register_hook(self._true)
            self._met[leaf] = True
            put_first(leaf._backward_hooks, handle.id)  # the script's own hooks see the unscaled gradient

    def _true(self, grad: torch.Tensor) -> torch.Tensor:
        return grad / self._used if self._at_work else grad

    _true.is_linear = True  # type: ignore[attr-defined]  # a strategy may average before this hook

    # -- steps -----------------------------------------------------------------------------------------------------

    def on_optimizer(self, optimizer: Any) -> None:
        plain = optimizer.step.__func__

        @wraps(plain)
        def step(self_: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if closure is not None:
                raise ScriptError(
                    "--mod precision=fp16: the optimizer computes its gradients inside its step (a closure), where a "
                    "step with infinite gradients cannot be skipped.",
                    advice="Use bfloat16, which needs no gradient scaling: --mod precision=bf16",
                )
            if self._are_fine(self_):
                return plain(self_, *args, **kwargs)
            self.stage.emit("before_step", self_)
            self.stage.emit("after_step", self_)
            return None

        optimizer.step = types.MethodType(step, optimizer)

    def _are_fine(self, optimizer: Any) -> bool:
        """Whether to make this step; adjusts the scale. Waits for the device."""
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if _are_finite([p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]):
            self._fine += self._first() is optimizer
            if self._fine >= GROWTH:
                self.scale, self._fine = self.scale * 2, 0
            return True
        self._fine = 0
        if self._used <= SMALLEST:
            return True
        if self.scale == self._used:  # another optimizer may have halved the scale after the same backward
            self.scale /= 2
        self.skipped += 1
        if self.skipped == 1:
            self.stage.pulse.notice(
                f"precision=fp16: a step was skipped: its gradients were infinite at a scale of {self._used:g}; "
                "the scale is halved until gradients are finite. This is usual in the first steps."
            )
        return False


def _are_finite(grads: list[torch.Tensor]) -> bool:
    kinds: dict[Any, list[torch.Tensor]] = {}
    for grad in grads:
        dense = (grad.coalesce().values() if grad.is_sparse else grad).detach()
        if dense.numel():
            kinds.setdefault((dense.device, dense.dtype), []).append(dense)
    largest = [torch.stack(torch._foreach_norm(alike, float("inf"))) for alike in kinds.values()]
    return all(bool(torch.isfinite(norms).all()) for norms in largest)
