"""Gradients of a model's output, which a script may look at or change: hooks, `retain_grad`, `torch.autograd.grad`.

The gradient of own rows is kept N times too large (see `crossings`) and contains everything that flows back into the
output, also through its gathered form. So the whole output's gradient is that of all workers' rows, divided by N.

A gathered output is a plain tensor, and what the model, or a loss before the gather, computed from own rows has not
gone through it. Its gradient, too, is therefore that of the rows from which it was gathered.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from paceline.script.rows.layout import Layout
from paceline.script.rows.origins import origin
from paceline.script.rows.tensor import KNOWN, Rows, make_plain


def whole_gradient(grad: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Called by every worker, in backward; waits for all of them."""
    return layout.gather(grad) / layout.split.group.world


def register_hook(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me, hook = args
    return f(me.local, _of_batch(hook, me.rows))


def hook_gathered(output: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
    """A hook on an output that was gathered; None if this tensor is none."""
    found = origin(output)
    if found is None:
        return None
    edge, layout = found
    rows_hook = _of_batch(hook, layout)

    def before(grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
        changed = rows_hook(grads[edge.output_nr])
        return None if changed is None else (*grads[: edge.output_nr], changed, *grads[edge.output_nr + 1 :])

    return edge.node.register_prehook(before)


def _of_batch(hook: Callable[[torch.Tensor], Any], layout: Layout) -> Callable[[torch.Tensor | None], Any]:
    """The hook on own rows that does what a hook on the whole output does."""

    def of_batch(grad: torch.Tensor | None) -> Any:
        if grad is None:  # the loss does not depend on the output, but the graph has an edge to it
            return None
        found = hook(whole_gradient(grad, layout))
        if found is None:
            return None
        return layout.own(found) * layout.split.group.world if layout.split.mine else torch.zeros_like(grad)

    return of_batch


def retain_grad(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    me: Any = args[0]
    local, layout = me.local, me.rows
    if not local.requires_grad:
        return NotImplemented
    make_plain(me)  # the script's variable keeps the gradient
    retain_whole(local, me, layout)


def retain_whole(local: torch.Tensor, whole: torch.Tensor, layout: Layout) -> None:
    """`whole`, which may get no gradient itself, keeps that of the own rows from which it was gathered."""
    local.register_hook(_of_batch(_keeps(whole), layout))


def retain_gathered(output: torch.Tensor) -> bool:
    """`retain_grad` of an output that was gathered; False if this tensor is none."""
    return hook_gathered(output, _keeps(output)) is not None


def _keeps(output: torch.Tensor) -> Callable[[torch.Tensor], None]:
    variable = weakref.ref(output)  # else the variable, through its graph, would hold itself

    def keep(grad: torch.Tensor) -> None:
        held = variable()
        if held is not None:
            with warnings.catch_warnings():  # torch did not populate it: this function does
                warnings.simplefilter("ignore")
                held.grad = grad if held.grad is None else held.grad + grad

    return keep


def no_gradient(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """`output.grad` without `retain_grad`."""


def own_of(tensor: torch.Tensor) -> torch.Tensor | GradientEdge:
    """That for whose gradient to ask autograd, given the tensor that the script asks for."""
    if isinstance(tensor, Rows):
        return tensor.local
    found = origin(tensor)
    return tensor if found is None else found[0]


def whole_of(grad: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient that the script asks for, given that of `own_of(tensor)`."""
    if grad is None:
        return None
    if isinstance(tensor, Rows):
        return whole_gradient(grad, tensor.rows)
    found = origin(tensor)
    return grad if found is None else whole_gradient(grad, found[1])


KNOWN[torch.Tensor.register_hook] = register_hook
KNOWN[torch.Tensor.retain_grad] = retain_grad
KNOWN[torch.Tensor.grad.__get__] = no_gradient  # type: ignore[union-attr]
