"""Functions along a dimension, and reductions over the rows: these become one all-reduce of the result's size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from paceline.script.rows.elementwise import knows, several
from paceline.script.rows.tensor import KNOWN, Rows
from paceline.script.slicing import crossings

EVERY: Any = object()  # no dimension given: all of them
# The position of `dim` among the arguments, and its default.
ALONG: dict[str, tuple[int, Any]] = {
    "normalize": (2, 1),
    **dict.fromkeys(("sort", "argsort", "glu"), (1, -1)),
    **dict.fromkeys(("topk", "kthvalue"), (2, -1)),
    **dict.fromkeys(("norm", "vector_norm"), (2, EVERY)),
}
SECOND = """
softmax log_softmax softmin cumsum cumprod cummax cummin logcumsumexp logsumexp argmax argmin sum nansum mean
nanmean prod std var any all amax amin max min median nanmedian mode count_nonzero"""
ALONG |= dict.fromkeys(SECOND.split(), (1, EVERY))


def along(name: str, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A function along dimensions; over the rows only sums, means, any and all."""
    me = args[0] if args else None
    if not isinstance(me, Rows) or kwargs.get("out") is not None:
        return NotImplemented
    position, default = ALONG[name]
    dim = args[position] if len(args) > position else kwargs.get("dim", default)
    if isinstance(dim, torch.Tensor):  # torch.max(a, b)
        return several(f, args, kwargs)
    if name in ("any", "all") and dim in ((), []):
        return NotImplemented  # torch takes no dimension for none here, and for all of them elsewhere
    if dim is None or dim is EVERY or dim in ((), []) or isinstance(dim, bool):
        dims = set(range(me.dim()))
    elif isinstance(dim, (tuple, list)):
        dims = {d % me.dim() for d in dim}
    else:
        dims = {dim % me.dim()}
    if me.rows.dim in dims:
        over = OVER_ROWS.get(name)
        return NotImplemented if over is None else me.rows.split.group.together.do(over, f, me, args, kwargs)
    made = f(me.local, *args[1:], **kwargs)
    if isinstance(made, torch.Tensor):
        return _along_other(me, made, dims)
    return type(made)([_along_other(me, part, dims) for part in made])


def _along_other(me: Rows, made: torch.Tensor, dims: set[int]) -> Rows:
    gone = len([d for d in dims if d < me.rows.dim]) if made.dim() < me.dim() else 0
    return Rows(made, me.rows.at(me.rows.dim - gone))


def _sum(f: Callable[..., Any], me: Rows, args: Any, kwargs: Any) -> torch.Tensor:
    return _blended(f, me, args, kwargs, 1.0)


def _mean(f: Callable[..., Any], me: Rows, args: Any, kwargs: Any) -> torch.Tensor:
    return _blended(f, me, args, kwargs, me.rows.split.share)


def _blended(f: Callable[..., Any], me: Rows, args: Any, kwargs: Any, weight: float) -> torch.Tensor:
    group = me.rows.split.group
    if me.dtype in crossings.HALF and kwargs.get("dtype") is None:
        # Autocast and counts may give another dtype.
        dtype = f(me.local.detach().new_zeros((1,) * me.dim()), *args[1:], **kwargs).dtype
        if dtype in crossings.HALF:
            exact = f(me.local, *args[1:], **kwargs | {"dtype": torch.float32})
            return crossings.blend(exact, weight, group, dtype)
    return crossings.blend(f(me.local, *args[1:], **kwargs), weight, group)


def _any(f: Callable[..., Any], me: Rows, args: Any, kwargs: Any) -> torch.Tensor:
    return crossings.blend(f(me.local, *args[1:], **kwargs).long(), 1.0, me.rows.split.group) > 0


def _all(f: Callable[..., Any], me: Rows, args: Any, kwargs: Any) -> torch.Tensor:
    group = me.rows.split.group
    return crossings.blend(f(me.local, *args[1:], **kwargs).long(), 1.0, group) == group.world


def layer_norm(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me, shape = args[0], args[1] if len(args) > 1 else kwargs.get("normalized_shape", ())
    if not isinstance(me, Rows) or me.rows.dim >= me.dim() - len(shape):
        return NotImplemented
    group = me.rows.split.group
    shared = [crossings.share(x, group) if isinstance(x, torch.Tensor) else x for x in args[1:]]
    named = {key: crossings.share(x, group) if isinstance(x, torch.Tensor) else x for key, x in kwargs.items()}
    return Rows(f(me.local, *shared, **named), me.rows)


OVER_ROWS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "nansum": _sum,
    "count_nonzero": _sum,
    "mean": _mean,
    "any": _any,
    "all": _all,
}
for _name in ALONG:
    knows(_name, partial(along, _name), (torch, torch.Tensor, F, torch.linalg))
KNOWN[F.layer_norm] = layer_norm
