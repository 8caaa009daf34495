"""Gradients of a model's output, which a script may look at or change: hooks, `retain_grad`, `torch.autograd.grad`.

The gradient of own rows is kept N times too large (see `crossings`) and contains everything that flows back into the
output, also through its gathered form. So the whole output's gradient is that of all workers' rows, divided by N.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from paceline.script.rows.layout import Layout
from paceline.script.rows.tensor import KNOWN, Rows, make_plain


def whole_gradient(grad: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Called by every worker, in backward; waits for all of them."""
    return layout.gather(grad) / layout.split.group.world


def register_hook(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me, hook = args
    layout, world = me.rows, me.rows.split.group.world

    def of_batch(grad: torch.Tensor) -> Any:
        found = hook(whole_gradient(grad, layout))
        return None if found is None else layout.own(found) * world

    return f(me.local, of_batch)


def retain_grad(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    me: Any = args[0]
    local, layout = me.local, me.rows
    if not local.requires_grad:
        return NotImplemented
    make_plain(me)  # the script's variable keeps the gradient
    variable = weakref.ref(me)  # else the variable, through its graph, would hold itself

    def keep(grad: torch.Tensor) -> None:
        found, held = whole_gradient(grad, layout), variable()
        if held is not None:
            with warnings.catch_warnings():  # torch did not populate it: this function does
                warnings.simplefilter("ignore")
                held.grad = found if held.grad is None else held.grad + found

    local.register_hook(keep)


def no_gradient(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """`output.grad` without `retain_grad`."""


def own_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor for whose gradient to ask autograd, given the one that the script asks for."""
    return tensor.local if isinstance(tensor, Rows) else tensor


def whole_of(grad: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient that the script asks for, given that of `own_of(tensor)`."""
    return whole_gradient(grad, tensor.rows) if isinstance(tensor, Rows) and grad is not None else grad


KNOWN[torch.Tensor.register_hook] = register_hook
KNOWN[torch.Tensor.retain_grad] = retain_grad
KNOWN[torch.Tensor.grad.__get__] = no_gradient  # type: ignore[union-attr]
