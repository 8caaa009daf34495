"""A tensor of the whole batch's shape whose memory is this worker's rows.

`Rows` is the output of a sliced call. A function that is known (`KNOWN`), or about which the proof knows
(`slicing.functions`), computes on own rows: row-wise functions give `Rows` again, and reductions become one small
all-reduce. Before any other function the rows of all workers are gathered: see `spread_tensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from paceline.script import tree
from paceline.script.rows.layout import Layout
from paceline.script.rows.origins import Arrivals, joined, remember
from paceline.script.rows.spread_tensor import Family, SpreadTensor, Step, make_plain, replayed
from paceline.torch_private import is_transformed, make_wrapper_subclass

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
KNOWN: dict[Any, Handler] = {}  # filled by `catalogue`; a handler may return NotImplemented
# numpy's names of arguments, which torch's functions in C++ take as well, and the names by which torch calls the first
# tensor.
NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}
FIRST_NAMES = ("input", "x", "a", "x1")


class Rows(SpreadTensor):
    """`local` holds own rows, `rows` says which they are. `source`: the whole tensor, of which `local` is a view, where
    every worker has it (a loader's batch). Then nothing is changed in place in parts, and becoming plain is free."""

    local: torch.Tensor
    rows: Layout
    source: torch.Tensor | None = None
    _shape: torch.Size
    _source_version: int = 0

    @staticmethod
    def __new__(
        cls: type[Rows], local: torch.Tensor, layout: Layout, view_of: Rows | None = None, step: Step | None = None
    ) -> Rows:
        shape = layout.whole_shape(local.shape)
        made: Rows = make_wrapper_subclass(cls, shape, dtype=local.dtype, device=local.device)
        made.local, made.rows, made._shape = local, layout, shape
        if view_of is not None and step is not None:
            made.is_view_of(view_of, step)
            if view_of.source is not None:
                made.source, made._source_version = step(view_of.source), view_of._source_version
        return made

    @classmethod
    def of_source(cls, source: torch.Tensor, layout: Layout) -> Rows:
        """Own rows of a tensor that every worker has whole."""
        made = cls(layout.own(source), layout)
        made.source, made._source_version = source, source._version
        return made

    @property
    def at_hand(self) -> torch.Tensor | None:
        """The whole tensor, if this worker has it. Not after a change in place: it may have been made to own rows."""
        source = self.source
        return source if source is not None and source._version == self._source_version else None

    @classmethod
    def in_parts(cls, f: Any, args: Any, kwargs: Any) -> Any:
        if is_transformed():  # a batch is met there more often than an output, and rows cannot be exchanged
            return NotImplemented
        handler = KNOWN.get(f) or KNOWN.get(getattr(f, "__wrapped__", None))
        if handler is not None:
            made = handler(f, *_torch_names(f, args, kwargs)) if kwargs else handler(f, args, kwargs)
            if made is not NotImplemented:
                return made
        me = first_rows(args, kwargs)
        functions = None if me is None else me.rows.split.group.functions
        return NotImplemented if functions is None else functions(f, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, f: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = (args, kwargs or {})
        keeps_none = f is torch.ops.aten.detach.default  # as of `torch.tensor(output)`
        if not keeps_none and any(isinstance(x, Rows) and x.local.requires_grad for x in tree.leaves(given)):
            super().__torch_dispatch__(f, types, args, kwargs)
        plain_args, plain_kwargs = tree.replace(given, lambda x: x.whole() if isinstance(x, Rows) else x)
        return f(*plain_args, **plain_kwargs)

    def whole(self) -> torch.Tensor:
        """All workers' rows, as a plain tensor; this one stays sharded. Called by every worker; waits for all."""
        return self.rows.gather(self.local) if self.at_hand is None else self.at_hand

    def wholes(self, alive: Sequence[Rows]) -> list[torch.Tensor]:
        sources = [source for member in alive if (source := member.at_hand) is not None]
        if len(sources) == len(alive):
            return [source.detach() for source in sources]  # `become` puts the object itself in a member's place
        if (usage := self.rows.split.input) is not None:
            usage.gathered += 1
        family = self.family
        if family is None or len(alive) == 1:
            whole = alive[0].whole()
            remember(whole, alive[0].local, alive[0].rows)
            return [whole]
        return _wholes_of(family, alive)

    # Asked often, and answered without going through __torch_function__.

    shape = property(lambda self: self._shape)
    ndim = property(lambda self: len(self._shape))
    dtype = property(lambda self: self.local.dtype)
    device = property(lambda self: self.local.device)
    is_cuda = property(lambda self: self.local.is_cuda)

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        """A script that asks for the node may put hooks on it, which must see the whole gradient: the tensor becomes
        plain."""
        return None if self.local.grad_fn is None else make_plain(self).grad_fn

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


def make_plain_if_free(value: Any) -> None:
    """Every sharded tensor in the nest that this worker has whole becomes plain, in place."""
    for leaf in tree.leaves(value):
        if isinstance(leaf, Rows) and leaf.at_hand is not None:
            make_plain(leaf)


def first_rows(args: Any, kwargs: Any) -> Rows | None:
    """The first sharded output among the arguments."""
    for value in args:
        if isinstance(value, Rows):
            return value
    return next((leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, Rows)), None)


def _wholes_of(family: Family, alive: Sequence[Rows]) -> list[torch.Tensor]:
    """The wholes of a family's members: views of the first one's."""
    views = [member for member in alive if member.steps and member.local.requires_grad]
    arrivals = Arrivals([view.rows for view in views], wanted=family.hooked)
    first = family.layout.gather(joined(family.local, [view.local for view in views], arrivals))
    wholes, number = [], 0
    for member in alive:
        whole = replayed(member, first)
        is_view = bool(member.steps) and member.local.requires_grad
        remember(whole, member.local, member.rows, arrivals if is_view else None)
        if is_view:
            arrivals.divert(number, whole)
            number += 1
        wholes.append(whole)
    return wholes
