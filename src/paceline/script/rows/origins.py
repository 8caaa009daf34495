"""The own rows behind a gathered tensor: gradients of an output are asked of them (see `gradients`).

Terms of a loss that a script computes before an output becomes plain reach the output's own rows directly, and later
terms reach them through the gathered tensor. So all of an output's gradient arrives at its own rows, and only there.

A view becomes plain as a view of the gathered output, because a change in place must be seen through both. Its
gradient goes to the output's own rows and passes by its own. Where a script asks for gradients of a view, `joined` and
`Arrivals` send the gradients of all views to their own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.graph import GradientEdge, get_gradient_edge

from paceline.script.rows.layout import Layout
from paceline.script.slicing import crossings

KEY = "paceline: own rows"  # in the metadata of a gathered tensor's node


def remember(whole: torch.Tensor, local: torch.Tensor, layout: Layout, arrivals: Arrivals | None = None) -> None:
    """Notes that `whole` was gathered from these rows. The note ends with a change in place, which makes a new node."""
    node: Any = whole.grad_fn
    if node is not None and local.requires_grad:
        node.metadata[KEY, whole.output_nr] = get_gradient_edge(local), layout, arrivals


def origin(whole: torch.Tensor) -> tuple[GradientEdge, Layout] | None:
    """Where the graph has the own rows from which this tensor was gathered; None if the tensor was not. From now on all
    of the tensor's gradient arrives there."""
    node: Any = whole.grad_fn
    found = None if node is None else node.metadata.get((KEY, whole.output_nr))
    if found is None:
        return None
    edge, layout, arrivals = found
    if arrivals is not None:
        arrivals.wanted = True
    return edge, layout


class Arrivals:
    """The gradients that have reached an output's gathered views in the backward that runs. If they are not `wanted`,
    they take torch's own way through the gathered output, so that hooks on its node see them."""

    __slots__ = ("grads", "layouts", "wanted")

    def __init__(self, layouts: Sequence[Layout], wanted: bool) -> None:
        self.layouts, self.wanted = layouts, wanted
        self.grads = list[torch.Tensor | None]([None] * len(layouts))

    def divert(self, number: int, view: torch.Tensor) -> None:
        """From now on the gradient of this gathered view goes to its own rows, if it is wanted."""
        place = view.output_nr

        def after(grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[None, ...] | None:
            if not self.wanted:
                return None
            self.grads[number] = grad_outputs[place]
            return (None,) * len(grad_inputs)

        assert view.grad_fn is not None
        view.grad_fn.register_hook(after)

    def take(self) -> list[torch.Tensor | None]:
        """The gradients of own rows of all views."""
        taken, self.grads = self.grads, [None] * len(self.grads)
        return [
            None if grad is None else layout.own(grad) * layout.split.group.world
            for grad, layout in zip(taken, self.layouts, strict=True)
        ]


def joined(local: torch.Tensor, views: Sequence[torch.Tensor], arrivals: Arrivals) -> torch.Tensor:
    """Own rows, to be gathered: their backward hands on to the views what has arrived for them."""
    if not views:
        return local
    shown = _Joined if local.grad_fn is None else crossings.named(_Joined, type(local.grad_fn).__name__)
    made: torch.Tensor = shown.apply(local, arrivals, *views)
    return made


class _Joined(Function):
    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, arrivals: Arrivals, *views: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # a loss of views only leaves no gradient for the rest
        ctx.arrivals = arrivals
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
        return grad, None, *ctx.arrivals.take()
