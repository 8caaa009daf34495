"""A tensor of which each worker holds a part, and that looks whole: the base of `Rows` and of a mesh's outputs.

A function that its class knows computes on the parts. Before any other function all parts are gathered, and the tensor
*becomes* a plain one, as do its views: the script's variable is then an ordinary torch.Tensor. So numbers never depend
on which functions are known, only time and memory do.

Every worker runs the same script and meets the same functions in the same order: a gather never waits for a worker that
does not come. If a peer is gone, it raises.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.torch_private import OwnTensor, swap_tensor_impl

Step = Callable[[torch.Tensor], torch.Tensor]


class Family:
    """The tensors that share memory with one output: itself and its views. When one of them becomes plain, all do, so
    that a change in place is still seen through each. `local` and `layout` are the first one's."""

    __slots__ = ("hooked", "layout", "local", "members")

    def __init__(self, first: SpreadTensor) -> None:
        self.local, self.layout = first.local, first.rows
        self.members: list[weakref.ref[SpreadTensor]] = [weakref.ref(first)]
        self.hooked = False  # a view has a hook, which must see all of its gradient


class SpreadTensor(OwnTensor):
    """`local`: what this worker holds. `rows`: which rows of a batch these are. `steps` made this view from the
    family's first member."""

    local: Any
    rows: Any = None
    family: Family | None = None  # None: it has no view
    steps: tuple[Step, ...] = ()

    def is_view_of(self, other: SpreadTensor, step: Step) -> None:
        """From now on this is what `step` makes of the other one."""
        other.family = self.family = other.family or Family(other)
        self.family.members.append(weakref.ref(self))
        self.steps = (*other.steps, step)

    @classmethod
    def in_parts(cls, f: Any, args: Any, kwargs: Any) -> Any:
        """What `f` returns, computed on the parts; NotImplemented if it needs whole tensors."""
        raise NotImplementedError

    def wholes(self, alive: Sequence[Any]) -> list[torch.Tensor]:
        """The whole tensors of these members of its family, plain. Every worker calls it; waits for all."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = cls.in_parts(f, args, kwargs)
        if found is not NotImplemented:
            return found
        make_plain((args, kwargs))
        return f(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, f: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached only by code that calls torch from C++: below autograd, where no gradient could be kept."""
        raise ScriptError(
            f"{f} was called from compiled code with a model's output, whose parts are on all workers: its gradient "
            "would be lost.",
            advice="Gather every output at once: --gather-below 1000000000000",
        )

    grad_fn = property(lambda self: self.local.grad_fn)
    is_leaf = property(lambda self: self.local.is_leaf)

    @property
    def requires_grad(self) -> bool:
        required: bool = self.local.requires_grad
        return required

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        make_plain(self)
        self.requires_grad = value


def make_plain(value: Any) -> Any:
    """Every `SpreadTensor` in the nest becomes a plain tensor, in place; returns the nest. Called by every worker;
    waits for all of them."""
    for leaf in tree.leaves(value):
        if isinstance(leaf, SpreadTensor):
            _become_plain(leaf)
    return value


def _become_plain(tensor: SpreadTensor) -> None:
    alive = [tensor]
    if tensor.family is not None:
        alive = [member for ref in tensor.family.members if (member := ref()) is not None]
        tensor.family.members.clear()  # torch refuses to exchange tensors that have weak references
    # The script may meet an unknown function under no_grad (a metric), and compute its loss afterwards.
    graph = any(member.requires_grad for member in alive)
    with torch.inference_mode(not graph and torch.is_inference_mode_enabled()), torch.set_grad_enabled(graph):
        wholes = tensor.wholes(alive)
    for member, whole in zip(alive, wholes, strict=True):
        become(member, whole)


def replayed(member: SpreadTensor, whole: torch.Tensor) -> torch.Tensor:
    """The whole of a view, given that of the family's first member."""
    for step in member.steps:
        whole = step(whole)
    return whole if member.requires_grad or not whole.requires_grad else whole.detach()


def become(tensor: Any, made: Any) -> None:
    """The object gets the class and the memory of `made`, and keeps the attributes that the script has given it. As
    torch.utils.swap_tensors, which refuses tensors that have views, or whose classes differ in slots. `made` becomes
    what the object was: a checkpoint may hold it, to compute with it again."""
    own = {name for kind in type(tensor).__mro__ if issubclass(kind, OwnTensor) for name in kind.__annotations__}
    given = {name: value for name, value in vars(tensor).items() if name not in own}
    tensor.__class__, made.__class__ = made.__class__, tensor.__class__
    tensor.__dict__, made.__dict__ = given | vars(made), vars(tensor)
    swap_tensor_impl(tensor, made)
