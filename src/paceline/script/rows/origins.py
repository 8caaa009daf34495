"""The own rows behind a gathered tensor: gradients of an output are asked of them (see `gradients`).

Terms of a loss that a script computes before an output becomes plain reach the output's own rows directly, and later
terms reach them through the gathered tensor. So all of an output's gradient arrives at its own rows, and only there.

A view becomes plain as a view of the gathered output, because a change in place must be seen through both. Its
gradient goes to the output's own rows and passes by its own. Where a script asks for gradients of a view, `joined` and
`Arrivals` send the gradients of all views to their own rows.

Where a script gets other tensors than those that the model has computed with, what flows from one output into another
inside the model does not reach what the script has: who asks for such a gradient is refused (`show_apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.graph import GradientEdge, get_gradient_edge

from paceline.comm.call_site import script_line
from paceline.errors import ScriptError
from paceline.script.rows import crossings
from paceline.script.rows.layout import Layout

KEY = "paceline: own rows"  # in the metadata of a gathered tensor's node
APART = "paceline: shown apart"  # in that of a node that made an output as the script has it


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


def show_apart(shown: Sequence[torch.Tensor | None], inner: Sequence[torch.Tensor], under: str) -> None:
    """`shown` is what the script gets for `inner`, the outputs of one call, of which one may be computed from another;
    None: the same tensor. `under`: the option that makes it so, for a person."""
    nodes = [tensor.grad_fn for tensor in inner]
    for number, tensor in enumerate(shown):
        found = origin(inner[number])
        node = nodes[number] if found is None else found[0].node
        others = [other for n, other in enumerate(nodes) if n != number]

        def is_used(node: Any = node, others: Any = others) -> bool:
            return any(behind is node for behind in nodes_behind(others))

        if tensor is not None and node is not None and others:
            note_apart(tensor, is_used, under)


def note_apart(shown: torch.Tensor, is_used: Callable[[], bool], under: str) -> None:
    """The same of one output. `is_used`: whether another one is computed from it."""
    node: Any = shown.grad_fn
    if node is not None:
        node.metadata[APART, shown.output_nr] = is_used, under


def pass_note(before: torch.Tensor, now: torch.Tensor) -> None:
    """The script has `now` in place of `before`."""
    node: Any = before.grad_fn
    note = None if node is None else node.metadata.get((APART, before.output_nr))
    if note is not None:
        note_apart(now, *note)


def require_all_gradient(tensor: torch.Tensor) -> None:
    """ScriptError if the script asks for a gradient of which a part would be missing."""
    node: Any = tensor.grad_fn
    found = origin(tensor)
    places = [] if node is None else [(node, tensor.output_nr)]
    places += [] if found is None else [(found[0].node, found[0].output_nr)]
    for node, number in places:
        is_used, under = node.metadata.get((APART, number), (None, ""))
        if is_used is not None and is_used():
            raise ScriptError(
                f"{script_line()} asks for the gradient of an output from which the model computes another output: "
                f"{under}, what comes from there would be missing.",
                advice="Use --strategy mirrored, without --elastic.",
            )


def nodes_behind(nodes: Iterable[Any]) -> Iterator[Any]:
    """These nodes of graphs, and all behind them."""
    seen: set[Any] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [behind for behind, _ in node.next_functions]


def leaves_behind(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that get gradients in a backward of these tensors."""
    nodes = nodes_behind(tensor.grad_fn for tensor in tensors)
    return [node.variable for node in nodes if hasattr(node, "variable")]


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
