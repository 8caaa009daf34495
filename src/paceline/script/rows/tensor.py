"""A tensor of the whole batch's shape whose memory is this worker's rows.

`Rows` is the output of a sliced call. A function that is known (`KNOWN`), or about which the proof knows
(`slicing.functions`), computes on own rows: row-wise functions give `Rows` again, and reductions become one small
all-reduce. Before any other function the rows of all workers are gathered and the tensor *becomes* a plain one: the
script's variable is then an ordinary torch.Tensor. So numbers never depend on which functions are known, only time and
memory do.

Every worker runs the same script and meets the same functions in the same order: a gather never waits for a worker that
does not come.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.rows.layout import Layout
from paceline.script.rows.origins import Arrivals, joined, remember
from paceline.torch_private import OwnTensor, make_wrapper_subclass, swap_tensor_impl

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
KNOWN: dict[Any, Handler] = {}  # filled by `catalogue`; a handler may return NotImplemented
Step = Callable[[torch.Tensor], torch.Tensor]
# numpy's names of arguments, which torch's functions in C++ take as well, and the names by which torch calls the first
# tensor.
NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}
FIRST_NAMES = ("input", "x", "a", "x1")


class Family:
    """The tensors that share memory with one output: itself and its views. When one of them becomes plain, all do, so
    that a change in place is still seen through each."""

    __slots__ = ("hooked", "layout", "local", "members")

    def __init__(self, first: Rows) -> None:
        self.local, self.layout = first.local, first.rows
        self.members: list[weakref.ref[Rows]] = [weakref.ref(first)]
        self.hooked = False  # a view has a hook, which must see all of its gradient


class Rows(OwnTensor):
    """`local` holds own rows, `rows` says which they are. `steps` made this view from the family's first member."""

    local: torch.Tensor
    rows: Layout
    family: Family | None  # None: it has no view
    steps: tuple[Step, ...]
    _shape: torch.Size

    @staticmethod
    def __new__(
        cls: type[Rows], local: torch.Tensor, layout: Layout, view_of: Rows | None = None, step: Step | None = None
    ) -> Rows:
        shape = layout.whole_shape(local.shape)
        made: Rows = make_wrapper_subclass(cls, shape, dtype=local.dtype, device=local.device)
        made.local, made.rows, made._shape = local, layout, shape
        made.family, made.steps = None, ()
        if view_of is not None and step is not None:
            view_of.family = made.family = view_of.family or Family(view_of)
            made.family.members.append(weakref.ref(made))
            made.steps = (*view_of.steps, step)
        return made

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = KNOWN.get(f) or KNOWN.get(getattr(f, "__wrapped__", None))
        if handler is not None:
            made = handler(f, *_torch_names(f, args, kwargs)) if kwargs else handler(f, args, kwargs)
            if made is not NotImplemented:
                return made
        me = first_rows(args, kwargs)
        if me is not None and (functions := me.rows.split.group.functions) is not None:
            made = functions(f, args, kwargs)
            if made is not NotImplemented:
                return made
        make_plain((args, kwargs))
        return f(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, f: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached only by code that calls torch from C++: below autograd, where no gradient could be kept."""
        given = (args, kwargs or {})
        keeps_none = f is torch.ops.aten.detach.default  # as of `torch.tensor(output)`
        if not keeps_none and any(isinstance(x, Rows) and x.local.requires_grad for x in tree.leaves(given)):
            raise ScriptError(
                f"{f} was called from compiled code with a model's output, whose rows are on all workers: its gradient "
                "would be lost.",
                advice="Gather every output at once: --gather-below 1000000000000",
            )
        plain_args, plain_kwargs = tree.replace(given, lambda x: x.whole() if isinstance(x, Rows) else x)
        return f(*plain_args, **plain_kwargs)

    def whole(self) -> torch.Tensor:
        """All workers' rows, as a new plain tensor; this one stays sharded. Called by every worker; waits for all."""
        return self.rows.gather(self.local)

    # Asked often, and answered without going through __torch_function__.

    shape = property(lambda self: self._shape)
    ndim = property(lambda self: len(self._shape))
    dtype = property(lambda self: self.local.dtype)
    device = property(lambda self: self.local.device)
    is_cuda = property(lambda self: self.local.is_cuda)
    is_leaf = property(lambda self: self.local.is_leaf)

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """A script that asks for the node may put hooks on it, which must see the whole gradient: the tensor becomes
        plain."""
        return None if self.local.grad_fn is None else make_plain(self).grad_fn

    @property
    def requires_grad(self) -> bool:
        return self.local.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        make_plain(self)
        self.requires_grad = value

    def size(self, dim: int | None = None) -> Any:
        return self._shape if dim is None else self._shape[dim]

    def dim(self) -> int:
        return len(self._shape)

    def numel(self) -> int:
        return self._shape.numel()

    def is_floating_point(self) -> bool:
        return self.local.is_floating_point()

    def __len__(self) -> int:
        return self._shape[0]


def _torch_names(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as handlers expect them: with torch's names, and the first tensor by its position."""
    numpy_too = not isinstance(f, FunctionType)  # torch's functions in Python know their own names only
    if numpy_too:
        kwargs = {_torch_name(name, kwargs): value for name, value in kwargs.items()}
    if not args and f is not torch.where:  # whose first argument is the condition
        first = next((name for name in FIRST_NAMES[: None if numpy_too else 1] if name in kwargs), None)
        if first is not None:
            return (kwargs[first],), {name: value for name, value in kwargs.items() if name != first}
    return args, kwargs


def _torch_name(name: str, given: dict[str, Any]) -> str:
    known = NUMPY_NAMES.get(name, name)
    return name if known in given else known  # given both ways: torch raises


def first_rows(args: Any, kwargs: Any) -> Rows | None:
    """The first sharded output among the arguments."""
    for value in args:
        if isinstance(value, Rows):
            return value
    return next((leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, Rows)), None)


def make_plain(value: Any) -> Any:
    """Every `Rows` in the nest becomes a plain tensor, in place; returns the nest. Called by every worker; waits for
    all of them."""
    for leaf in tree.leaves(value):
        if isinstance(leaf, Rows):
            _become_plain(leaf)
    return value


def _become_plain(rows: Rows) -> None:
    family, alive = rows.family, [rows]
    if family is not None:
        alive = [member for ref in family.members if (member := ref()) is not None]
        family.members.clear()  # torch refuses to exchange tensors that have weak references
    # The script may meet an unknown function under no_grad (a metric), and compute its loss afterwards.
    graph = any(member.local.requires_grad for member in alive)
    with torch.inference_mode(not graph and torch.is_inference_mode_enabled()), torch.set_grad_enabled(graph):
        if family is not None and len(alive) > 1:
            wholes = _wholes_of(family, alive)
        else:
            wholes = [rows.whole()]
            remember(wholes[0], rows.local, rows.rows)
    for member, whole in zip(alive, wholes, strict=True):
        _exchange(member, whole)


def _wholes_of(family: Family, alive: list[Rows]) -> list[torch.Tensor]:
    """The wholes of a family's members: views of the first one's."""
    views = [member for member in alive if member.steps and member.local.requires_grad]
    arrivals = Arrivals([view.rows for view in views], wanted=family.hooked)
    first = family.layout.gather(joined(family.local, [view.local for view in views], arrivals))
    wholes, number = [], 0
    for member in alive:
        whole = _replayed(member, first)
        is_view = bool(member.steps) and member.local.requires_grad
        remember(whole, member.local, member.rows, arrivals if is_view else None)
        if is_view:
            arrivals.divert(number, whole)
            number += 1
        wholes.append(whole)
    return wholes


def _replayed(member: Rows, whole: torch.Tensor) -> torch.Tensor:
    """The whole of a view, given that of the family's first member."""
    for step in member.steps:
        whole = step(whole)
    return whole if member.local.requires_grad or not whole.requires_grad else whole.detach()


def _exchange(rows: Rows, whole: torch.Tensor) -> None:
    """The object `rows` becomes the tensor `whole`. As torch.utils.swap_tensors, which refuses a tensor that has
    views."""
    rows.__class__, whole.__class__ = torch.Tensor, Rows  # type: ignore[assignment]
    given = {name: value for name, value in rows.__dict__.items() if name not in Rows.__annotations__}
    rows.__dict__, whole.__dict__ = whole.__dict__ | given, rows.__dict__
    swap_tensor_impl(rows, whole)
