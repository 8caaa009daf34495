"""Calls and backwards that are done again when a worker is lost (elastic runs).

An output of a sliced call is gathered at once, so between two calls every worker holds all numbers. Behind the output
stands a portal: to autograd it is one function, and its backward runs the backward of the call's own graph. When a
worker is lost, the rows are dealt out anew. In a call, the call is made again. In a backward, gradients are put back
and the backward is made again: the script's own graph is still there, and a portal whose call was computed by an
earlier group computes it again first, from the same arguments, random numbers and parameters. Who has which rows does
not change any number, so neither do losses.

Gradients are summed when a backward has ended, not during it: until all sums are there, a worker's own gradients can
be made again.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.parameter import is_lazy

from paceline.comm.group import Group
from paceline.comm.members import lost_at
from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.proof.mutations import Containers, Told
from paceline.script.proof.surroundings import State, put_numbers
from paceline.script.rows import crossings, origins
from paceline.torch_private import parameters_in

MADE_AGAIN = (
    "A worker was lost during a backward, which is made again: hooks that the script has set on tensors are called "
    "twice in it."
)
_backward = torch.autograd.backward  # bound before the script's is replaced


class Unchanged:
    """The parameters and arguments of a call: once they have changed, it cannot be made again. Copies are kept only of
    the arguments of a module that changes them, and at its first call."""

    def __init__(self, redo: Redo, module: nn.Module, arguments: Any) -> None:
        self._group, self._name = redo.group, type(module).__name__
        given = [leaf for leaf in tree.leaves(arguments) if isinstance(leaf, torch.Tensor)]
        may_change = filter(_is_plain, given) if redo.may_change(module) else ()
        self._copies = {id(leaf): (leaf, leaf.clone()) for leaf in may_change}
        tensors = (*parameters_in(module), *(leaf for leaf in given if id(leaf) not in self._copies))
        self._versions = [(t, _version(t)) for t in tensors]

    def then(self, put_back: Callable[[], None]) -> None:
        """Calls `put_back`, or ends the run."""
        self.check()
        for tensor, before in self._copies.values():
            put_numbers(tensor, before)
        put_back()

    def check(self) -> None:
        if any(_version(tensor) != version for tensor, version in self._versions):
            what = f"a call of {self._name} whose parameters or arguments have changed since"
            raise self._group.ending.carry(lost_at(what))

    def copied(self, leaf: Any) -> Any:
        """An argument as it was, which the call may change: the script's own may be saved in the script's graph."""
        return self._copies[id(leaf)][1].clone() if id(leaf) in self._copies else leaf


class Unmade:
    """Returned for a call that is not computed in slices. Who holds which rows changes nothing in it, so it is made
    once, by `make(args, kwargs)`, outside of what is done again when a worker is lost."""

    def __init__(self, make: Callable[[Any, Any], Any]) -> None:
        self.make = make


class Autocast:
    """The autocast that a call is made under."""

    def __init__(self) -> None:
        kinds = ["cpu", *(["cuda"] if torch.cuda.is_initialized() else [])]
        self._state = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]

    def __call__(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        for kind, enabled, dtype in self._state:
            stack.enter_context(torch.autocast(kind, dtype, enabled=enabled))
        return stack


class Call:
    """A sliced call whose output has a graph."""

    def __init__(self, redo: Redo, compute: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> None:
        self._redo, self._compute, self._module = redo, compute, module
        self._own = Containers((args, kwargs))  # the script's
        self.given: list[torch.Tensor] = []  # arguments that need gradients
        self._lent: list[torch.Tensor] = []  # … and what the call gets in their place
        self._arguments = tree.replace((args, kwargs), self._lend)
        self._state, self._autocast = State(module), Autocast()
        self._unchanged = Unchanged(redo, module, self._arguments)
        self._inner: list[torch.Tensor] = []  # what the call returned or left in attributes, with its own graph
        self._generation = -1  # of the group that has computed them; -1: their graph is spent

    def _lend(self, leaf: Any) -> Any:
        if not _has_graph(leaf):
            return leaf
        lent: Any = leaf.detach().requires_grad_()
        lent._paceline_lent = True
        self.given.append(leaf)
        self._lent.append(lent)
        return lent

    def make(self) -> Any:
        """The output. Its tensors that need gradients lead to this call, and so do those that it left in attributes."""
        output, left = self._computed(self._again)
        if isinstance(output, Unmade):
            return output
        if self._inner and not any(t.grad_fn is not None and t.retains_grad for t in self._inner):
            name = next((type(t.grad_fn).__name__ for t in self._inner if t.grad_fn is not None), "")
            portal = crossings.named(_Portal, name) if name else _Portal
            made = portal.apply(self, torch.empty(0, device="cpu", requires_grad=True), *self.given)
            origins.show_apart(made, self._inner, "with --elastic")
            shown = iter(made)
            output = tree.replace(output, lambda leaf: next(shown) if _has_graph(leaf) else leaf)
            for attributes, place in left:
                attributes[place] = next(shown)
        return self._own.adopt(output) if isinstance(output, Told) else output

    def _again(self) -> None:
        self._unchanged.then(self._state.put_back)
        self._generation = self._redo.group.generation

    def _computed(self, again: Callable[[], None] | None) -> tuple[Any, list[tuple[dict[str, Any], str]]]:
        """The output, with what the call did to its arguments' containers; and where it left tensors in attributes."""
        # Containers of its own, each time.
        own: Callable[[Any], Any] = (lambda leaf: leaf) if again is not None else self._unchanged.copied
        args, kwargs = tree.replace(self._arguments, own)
        # A call that is computed in parts goes on with the next group: the parts before are the earlier one's.
        self._generation = self._redo.group.generation
        containers = Containers((args, kwargs))
        made = self._compute(self._module, args, kwargs, again)
        if isinstance(made, Unmade):
            if again is not None:
                return made, []
            made = made.make(args, kwargs)
        output = containers.told(made)
        left = self._state.new_tensors()
        self._inner = [leaf for leaf in tree.leaves(output) if _has_graph(leaf)]
        self._inner += [attributes[name] for attributes, name in left]
        self._redo.meet(self._module, self._inner)
        return output, left

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.data for tensor in self._inner)  # no views, which could not be changed in place

    def back(self, grads: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor | None]:
        """The backward of the call: parameters get their gradients, and the arguments' gradients are returned."""
        if torch.is_grad_enabled():
            self._redo.refuse("torch.autograd.grad, or a backward with create_graph,")
        if self._generation < 0:
            raise RuntimeError("Trying to backward through the graph a second time. Specify retain_graph=True.")
        for tensor in self._lent:
            tensor.grad = None
        pairs = [(tensor, grad) for tensor, grad in zip(self._inner, grads, strict=True) if grad is not None]
        _backward([tensor for tensor, _ in pairs], [grad for _, grad in pairs], retain_graph=self._redo.retain)
        if not self._redo.retain:
            self._inner, self._generation = [], -1
        return [tensor.grad for tensor in self._lent]

    def renew(self) -> None:
        """Computes the call again, as it was made first, if another group has computed it, which had other rows; or if
        its graph is spent in a backward that is made again. Called on the script's thread: on a GPU, portals are on a
        thread of autograd."""
        if self._generation == self._redo.group.generation or (self._generation < 0 and not self._redo.again):
            return
        now = State(self._module)
        try:
            self._unchanged.check()
            self._state.put_back()
            with torch.enable_grad(), self._autocast(), self._redo.inside():
                self._computed(None)
        finally:
            now.put_back()


class Redo:
    """The calls and backwards of one worker in an elastic run."""

    def __init__(self, group: Group, inside: Callable[[], AbstractContextManager[None]]) -> None:
        """`inside`: a context in which modules are no seams."""
        self.group, self.inside = group, inside
        self.retain = False  # the backward under way leaves its graph
        self.again = False  # the backward under way is made again
        self._changing: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        # Tensors that a module uses and does not hold, found at its first call.
        self._strays: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._retained: list[weakref.ref[Any]] = []  # tensors whose gradients the script has asked to keep

    def call(self, compute: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """`compute(module, args, kwargs, again)` makes the sliced call; `again` is to be called before it is made anew
        by another group."""
        if torch.is_grad_enabled():
            return Call(self, compute, module, args, kwargs).make()
        state, unchanged = State(module), Unchanged(self, module, (args, kwargs))
        return compute(module, args, kwargs, partial(unchanged.then, state.put_back))

    def may_change(self, module: nn.Module) -> bool:
        """Whether a call of the module may change its arguments: it has done so before, or was not called yet."""
        known = self._changing.get(module)
        self._changing.setdefault(module, False)
        return known is not False

    def note_change(self, module: nn.Module, argument: torch.Tensor) -> None:
        """A call has changed its argument, unseen by autograd: it cannot be made again from it, and of the next call's
        arguments copies are kept."""
        self._changing[module] = True
        changed: Any = argument
        changed._paceline_changes = getattr(changed, "_paceline_changes", 0) + 1

    def note_retained(self, tensor: torch.Tensor) -> None:
        self._retained = [ref for ref in self._retained if ref() is not None]
        self._retained.append(weakref.ref(tensor))

    def meet(self, module: nn.Module, inner: list[torch.Tensor]) -> None:
        """A module was called, with these outputs."""
        if module not in self._strays:
            own = {id(parameter) for parameter in parameters_in(module)}
            self._strays[module] = [weakref.ref(leaf) for leaf in origins.leaves_behind(inner) if id(leaf) not in own]

    def refuse(self, what: str) -> None:
        """What needs a graph that does not end at portals."""
        error = ScriptError(f"--elastic cannot make {what} again if a worker is lost.", advice="Leave --elastic out.")
        raise self.group.ending.carry(error)

    def _before_portals(self, losses: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Call]]:
        """What gets a gradient in the script's own graph, and the calls behind its portals. A tensor that left a model
        past its outputs (a hook has kept it) leads into the model's graph instead of to the portal."""
        leaves, calls = [], []
        for node in origins.nodes_behind(loss.grad_fn for loss in losses):
            leaf = getattr(node, "variable", None)
            if crossings.is_crossing(node) or hasattr(leaf, "_paceline_lent"):
                self.refuse("a backward through a tensor that left a model past its outputs")
            if leaf is not None:
                leaves.append(leaf)
            if isinstance(call := getattr(node, "call", None), Call):
                calls.append(call)
        return leaves, calls

    def begin_backward(
        self,
        plain: Callable[..., Any],
        losses: list[torch.Tensor],
        held: Iterable[torch.Tensor],
        rest: dict[str, Any],
        told: Callable[[], None],
    ) -> tuple[Callable[..., Any], Callable[[], None]]:
        """A backward by `plain` begins; `held` may get gradients. Returns what to call for `plain`, and what must be
        called before it is made again, which calls `told` in the end."""
        self.retain, self.again = bool(rest.get("retain_graph") or rest.get("create_graph")), False
        if self.group.world > 1:  # else nobody is left to lose
            rest["retain_graph"] = True  # of the script's own graph; portals free what is behind them
        known = itertools.chain(self._retained, *self._strays.values())
        strays = (found for ref in known if (found := ref()) is not None)
        found, calls = self._before_portals(losses)
        if calls and rest.get("inputs") is not None:  # a portal's own backward fills every gradient behind it
            self.refuse("a backward with inputs=")
        leaves = {id(leaf): leaf for leaf in (*held, *found, *strays)}.values()
        kept = [(leaf, leaf.grad, None if leaf.grad is None else leaf.grad.clone()) for leaf in leaves]

        @torch.no_grad()
        def put_back() -> None:
            self.again = True
            for leaf, grad, value in kept:
                leaf.grad = grad if value is None or grad is None else grad.copy_(value)
            told()
            self.group.pulse.notice(MADE_AGAIN)

        def backward(*args: Any, **kwargs: Any) -> None:
            for call in calls:
                call.renew()
            plain(*args, **kwargs)

        return backward, put_back


class _Portal(Function):
    @staticmethod
    def forward(ctx: Any, call: Call, needed: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return call.outputs()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, None, *ctx.call.back(grads))


def _version(tensor: torch.Tensor) -> tuple[int, int, int]:
    if is_lazy(tensor):
        return -1, 0, 0
    memory = tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0  # another one: `p.data = …`
    return 0 if tensor.is_inference() else tensor._version, getattr(tensor, "_paceline_changes", 0), memory


def _is_plain(leaf: torch.Tensor) -> bool:
    return leaf.layout is torch.strided and not leaf.requires_grad


def _has_graph(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and not isinstance(leaf, nn.Parameter)
