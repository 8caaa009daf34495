"""Functions that move rows to other places: `x[torch.randperm(len(x))]`, `x.flip(0)`, `x.roll(1, 0)`, as in mix-up.

What they give has as many rows, of which each worker computes its own. The rows that come there may be any worker's: a
loader's batch is whole on each, of another tensor they are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.script.rows.elementwise import knows
from paceline.script.rows.shapes import getitem
from paceline.script.rows.tensor import KNOWN, Rows

INTEGERS = (torch.int64, torch.int32)


def flipped(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    dims = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:] or kwargs.get("dims")
    return _moved_alone(args[0], dims, lambda places: places.flip(0))


def rolled(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = dict(zip(("shifts", "dims"), args[1:], strict=False)) | kwargs
    shifts, dims = given.get("shifts"), given.get("dims")
    return _moved_alone(args[0], dims, lambda places: places.roll(shifts, 0))


def selected(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = dict(zip(("dim", "index"), args[1:], strict=False)) | kwargs
    index = given.get("index")
    return _moved_alone(args[0], given.get("dim"), lambda places: places.to(index.device).index_select(0, index))


def indexed(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`x[order]`, `x[order, :, 4:8]`; views as before."""
    me, index = args
    order, *rest = index if isinstance(index, tuple) else (index,)
    if not isinstance(me, Rows) or type(order) is not torch.Tensor or me.rows.dim:
        return getitem(f, args, kwargs)
    if order.dim() != 1 or order.dtype not in INTEGERS or not all(type(one) is slice for one in rest):
        return NotImplemented
    part = getitem(f, (me, (slice(None), *rest)), {}) if rest else me
    return _moved_alone(part, 0, lambda places: places.to(order.device)[order.long()])


def _moved_alone(me: Any, dims: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Own rows of the result, if only rows move, each as a whole. `move`: what the function makes of the places."""
    dims = (dims,) if isinstance(dims, int) else dims
    if not isinstance(me, Rows) or not isinstance(dims, (tuple, list)) or len(dims) != 1 or me.requires_grad:
        return NotImplemented
    layout = me.rows
    if dims[0] not in (layout.dim, layout.dim - me.dim()) or layout.outer != 1 or layout.inner != 1:
        return NotImplemented
    order = move(torch.arange(layout.size, device="cpu"))  # raises on every worker if it raises
    if order.shape != (layout.size,):
        return NotImplemented
    own = order.narrow(0, layout.split.start, layout.split.mine).to(me.device)
    return Rows(me.whole().index_select(layout.dim, own), layout.at(layout.dim))


knows("flip", flipped, (torch, torch.Tensor))
knows("roll", rolled, (torch, torch.Tensor))
knows("index_select", selected, (torch, torch.Tensor))
KNOWN[torch.Tensor.__getitem__] = indexed
