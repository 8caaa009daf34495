"""Functions that give the same rows another shape: reshapes, and views along other dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from paceline.script.rows.elementwise import NUMBERS, in_place, is_contiguous, knows, operand
from paceline.script.rows.layout import Layout
from paceline.script.rows.spread_tensor import Step
from paceline.script.rows.tensor import KNOWN, Rows

VIEWS = """transpose swapaxes swapdims permute movedim moveaxis unsqueeze squeeze t select chunk split tensor_split
unbind detach adjoint"""
BASIC = (int, slice, type(None), type(Ellipsis))


def reshape(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me = args[0]
    shape = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if kwargs or not isinstance(me, Rows) or not all(isinstance(size, int) for size in shape):
        return NotImplemented  # `view(dtype)`, `reshape(shape=…)`
    return _reshaped(me, list(shape))


def flatten(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me = args[0]
    if not isinstance(me, Rows) or not me.dim():
        return NotImplemented
    first = (args[1] if len(args) > 1 else kwargs.get("start_dim", 0)) % me.dim()
    last = (args[2] if len(args) > 2 else kwargs.get("end_dim", -1)) % me.dim()
    shape = me.shape
    return _reshaped(me, [*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]])


def _reshaped(me: Rows, shape: list[int]) -> Any:
    if -1 in shape:
        known = -prod(shape)
        if known <= 0 or me.numel() % known:
            return NotImplemented
        shape[shape.index(-1)] = me.numel() // known
    if prod(shape) != me.numel():
        return NotImplemented
    layout = me.rows.reshaped(me.shape, shape)
    if layout is None:
        return NotImplemented
    local = me.local.reshape(layout.local_shape(shape))
    if not _can_be_viewed(me, shape):  # a copy, also where a worker's single row could be viewed
        return Rows(local.clone() if _shares_memory(local, me.local) else local, layout)
    return _viewed(me, local, layout, shape, lambda whole: whole.reshape(shape))


def _can_be_viewed(me: Rows, shape: list[int]) -> bool:
    """Whether one process would get a view of this shape, and no copy. The same on all workers."""
    if is_contiguous(me):
        return True
    try:
        torch.empty_strided(me.shape, me.rows.whole_strides(me.local), dtype=torch.uint8, device="meta").view(shape)
    except RuntimeError:
        return False
    return True


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def view(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A view in which every row is still there, as `x.transpose(0, 1)`, `x[:, -1]` or `x.chunk(2, dim=1)`."""
    me = args[0]
    if not isinstance(me, Rows) or any(isinstance(value, torch.Tensor) for value in (*args[1:], *kwargs.values())):
        return NotImplemented
    # A tensor that steps through memory along its rows only: where they are afterwards is where the step is.
    steps = [0] * me.dim()
    steps[me.rows.dim] = 1
    try:
        found = f(torch.empty_strided(me.shape, steps, dtype=torch.uint8, device="cpu"), *args[1:], **kwargs)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return NotImplemented  # torch's own words come from the plain tensor
    parts = [found] if isinstance(found, torch.Tensor) else found
    layouts = [layout for part in parts if (layout := _layout_of(part, me.rows)) is not None]
    if len(layouts) < len(parts):
        return NotImplemented  # and not asked of own rows, which may have no such row
    try:
        own = f(me.local, *args[1:], **kwargs)
    except (RuntimeError, IndexError):
        return NotImplemented  # it counts all rows: `x.split([len(x)])`
    if isinstance(found, torch.Tensor):
        return _viewed(me, own, layouts[0], found.shape, lambda whole: f(whole, *args[1:], **kwargs))
    return type(found)(
        _viewed(me, part, layout, like.shape, _nth(i, lambda whole: f(whole, *args[1:], **kwargs)))
        for i, (part, layout, like) in enumerate(zip(own, layouts, found, strict=True))
    )


def _nth(number: int, parts: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> Step:
    return lambda whole: parts(whole)[number]


def _layout_of(found: torch.Tensor, old: Layout) -> Layout | None:
    strides = found.stride()
    dims = [dim for dim, size in enumerate(found.shape) if strides[dim] == 1 and size == old.size]
    return old.at(dims[0]) if len(dims) == 1 else None


def _viewed(me: Rows, local: torch.Tensor, layout: Layout, whole_shape: Sequence[int], step: Step) -> Rows:
    if local is me.local:
        return me
    expected = layout.local_shape(whole_shape)
    if list(local.shape) != expected:  # `squeeze` also removes a dimension that has one own row
        local = local.reshape(expected)
    if not _shares_memory(local, me.local):
        return Rows(local, layout)  # a copy
    return Rows(local, layout, me, step)


def getitem(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return view(f, args, kwargs) if _is_basic(args[1]) else NotImplemented


def setitem(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me, index, value = args
    if not isinstance(me, Rows) or me.source is not None:
        return NotImplemented
    if isinstance(index, torch.Tensor) and index.dtype is torch.bool and not isinstance(value, torch.Tensor):
        # A mask chooses rows by their own values: `logits[logits < least] = -inf`.
        if index.dim() > me.rows.dim and index.shape == me.shape[: index.dim()]:
            mask = operand(index, me.rows, index.dim() - me.rows.dim)
            if mask is not NotImplemented:
                f(me.local, mask, value)
                return None
        return NotImplemented
    if not _is_basic(index):
        return NotImplemented
    part = getitem(torch.Tensor.__getitem__, (me, index), {})
    fitting = NotImplemented if part is NotImplemented else _fitting(value, part)
    if fitting is NotImplemented or in_place(torch.Tensor.copy_, (part, fitting), {}) is NotImplemented:
        return NotImplemented
    return None


def _fitting(value: Any, part: Rows) -> Any:
    """A value to be assigned, as a tensor without leading dimensions of size 1, which torch drops; NotImplemented if
    the whole tensor must be asked, which may raise."""
    if isinstance(value, NUMBERS):
        return part.local.new_tensor(value)
    if not isinstance(value, torch.Tensor) or (isinstance(value, Rows) and value.dim() > part.dim()):
        return NotImplemented
    while value.dim() > part.dim() and value.shape[0] == 1:
        value = value[0]
    return value if value.dim() <= part.dim() else NotImplemented


def _is_basic(index: Any) -> bool:
    """Whether an index has numbers, slices, None and … only: the result is a view."""
    items: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    return all(type(item) in BASIC for item in items)


knows("view reshape", reshape)
knows("flatten", flatten)
knows(VIEWS, view)
KNOWN[torch.Tensor.__getitem__] = getitem
KNOWN[torch.Tensor.__setitem__] = setitem
for _name in ("T", "mT", "data"):
    KNOWN[getattr(torch.Tensor, _name).__get__] = view
