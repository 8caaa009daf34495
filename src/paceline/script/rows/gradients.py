"""Gradients of a model's output, which a script may look at or change: hooks, `retain_grad`, `torch.autograd.grad`.

The gradient of own rows is kept N times too large (see `crossings`) and contains everything that flows back into the
output, also through its gathered form. So the whole output's gradient is that of all workers' rows, divided by N.

A gathered output is a plain tensor, and what the model, or a loss before the gather, computed from own rows has not
gone through it. Its gradient, too, is therefore that of the rows from which it was gathered.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from paceline.script.rows.layout import Layout
from paceline.script.rows.origins import origin, require_all_gradient
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.rows.tensor import KNOWN, Rows

KEY = "paceline: listeners"  # in the metadata of the node that made own rows


def whole_gradient(grad: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Called by every worker, in backward; waits for all of them."""
    return layout.gather(grad) / layout.split.group.world


class Listeners:
    """The hooks of one output, in order, and the tensors that keep its gradient: last, as in torch. Called by autograd
    with the gradient of own rows."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.hooks: OrderedDict[int, Callable[[torch.Tensor], Any]] = OrderedDict()
        self.keepers: list[weakref.ref[torch.Tensor]] = []  # else a tensor, through its graph, would hold itself

    def add(self, hook: Callable[[torch.Tensor], Any]) -> RemovableHandle:
        handle = RemovableHandle(self.hooks)
        self.hooks[handle.id] = hook
        return handle

    def keep_in(self, output: torch.Tensor) -> None:
        if not self.keeps_in(output):
            self.keepers.append(weakref.ref(output))

    def keeps_in(self, output: torch.Tensor) -> bool:
        return any(keeper() is output for keeper in self.keepers)

    def __call__(self, grad: torch.Tensor | None) -> torch.Tensor | None:
        # Without a gradient, the loss does not depend on the output, but the graph has an edge to it.
        if grad is None or not (self.hooks or self.keepers):
            return None
        layout, changed = self.layout, False
        whole = whole_gradient(grad, layout)
        for hook in list(self.hooks.values()):
            if (found := hook(whole)) is not None:
                whole, changed = found, True
        for keeper in self.keepers:
            _keep(whole, keeper())
        if not changed:
            return None
        return layout.own(whole) * layout.split.group.world if layout.split.mine else torch.zeros_like(grad)

    def before(self, place: int) -> Callable[..., Any]:
        """The same as a hook on the node that made the own rows."""

        def before(grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
            changed = self(grads[place])
            return None if changed is None else (*grads[:place], changed, *grads[place + 1 :])

        return before


def _keep(grad: torch.Tensor, output: torch.Tensor | None) -> None:
    if output is not None:
        with warnings.catch_warnings():  # torch did not populate it: this function does
            warnings.simplefilter("ignore")
            output.grad = grad if output.grad is None else output.grad + grad


def _known(edge: GradientEdge) -> Listeners | None:
    node: Any = edge.node
    found = node.metadata.get((KEY, edge.output_nr))
    return None if found is None else found()


def _listeners(edge: GradientEdge, layout: Layout, local: torch.Tensor | None = None) -> Listeners:
    """The listeners of the own rows at this place of the graph. Given the own rows, autograd.grad sees what hooks
    change, as in torch; given the place only, hooks come after autograd.grad has taken the gradient."""
    found = _known(edge)
    if found is None:
        node: Any = edge.node
        found = Listeners(layout)
        if local is not None:
            local.register_hook(found)
        else:
            node.register_prehook(found.before(edge.output_nr))
        node.metadata[KEY, edge.output_nr] = weakref.ref(found)  # the node's hook holds them
    return found


def register_hook(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me, hook = args
    if not me.local.requires_grad:
        return NotImplemented  # torch raises
    if me.family is not None and me.steps:
        me.family.hooked = True
    return _listeners(get_gradient_edge(me.local), me.rows, me.local).add(hook)


def hook_gathered(output: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
    """A hook on an output that was gathered; None if this tensor is none."""
    found = origin(output)
    return None if found is None else _listeners(*found).add(hook)


def retain_grad(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    me: Any = args[0]
    local, layout = me.local, me.rows
    if not local.requires_grad:
        return NotImplemented
    make_plain(me)  # the script's variable keeps the gradient
    origin(me)  # from now on all of the gradient arrives at own rows
    retain_whole(local, me, layout)


def retain_whole(local: torch.Tensor, whole: torch.Tensor, layout: Layout) -> None:
    """`whole`, which may get no gradient itself, keeps that of the own rows from which it was gathered."""
    _listeners(get_gradient_edge(local), layout, local).keep_in(whole)


def retain_gathered(output: torch.Tensor) -> bool:
    """`retain_grad` of an output that was gathered; False if this tensor is none."""
    found = origin(output)
    if found is None:
        return False
    _listeners(*found).keep_in(output)
    return True


def retains_gathered(output: torch.Tensor) -> bool:
    """Whether this is an output that was gathered and keeps its gradient."""
    found = origin(output)
    known = None if found is None else _known(found[0])
    return known is not None and known.keeps_in(output)


def retains_nothing(f: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """`output.retains_grad`: `retain_grad` would have made the output plain."""
    return False


def no_gradient(f: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """`output.grad` without `retain_grad`."""


def require_all(asked: Iterable[Any]) -> None:
    """ScriptError if the script asks for a gradient of an output of which a part would be missing."""
    for tensor in asked:
        if isinstance(tensor, torch.Tensor):
            require_all_gradient(tensor.local if isinstance(tensor, Rows) else tensor)


def own_of(tensor: torch.Tensor) -> torch.Tensor | GradientEdge:
    """That for whose gradient to ask autograd, given the tensor that the script asks for."""
    if isinstance(tensor, Rows):
        return tensor.local
    found = origin(tensor)
    return tensor if found is None else found[0]


def kept_in(tensor: torch.Tensor) -> torch.Tensor | GradientEdge:
    """That which to name as an input of a backward, given the tensor that the script names. The tensor keeps the
    gradient, as in torch."""
    if isinstance(tensor, torch.Tensor) and (isinstance(tensor, Rows) or origin(tensor) is not None):
        tensor.retain_grad()
        return own_of(tensor)
    return tensor


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
KNOWN[torch.Tensor.retains_grad.__get__] = retains_nothing  # type: ignore[attr-defined]
