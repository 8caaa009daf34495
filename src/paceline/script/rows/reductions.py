"""`any` and `all` over the rows: one all-reduce of the result's size. Of other functions the proof tells: see
`slicing.functions`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from paceline.script.rows import crossings
from paceline.script.rows.elementwise import knows
from paceline.script.rows.tensor import Rows


def over_rows(is_all: bool, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    me = args[0] if args else None
    if not isinstance(me, Rows) or kwargs.get("out") is not None:
        return NotImplemented
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim in ((), []):
        return NotImplemented  # torch takes no dimension for none here, and for all of them elsewhere
    dims = dim if isinstance(dim, (tuple, list)) else range(me.dim()) if dim is None else [dim]
    if me.rows.dim not in {d % me.dim() for d in dims}:
        return NotImplemented
    return me.rows.split.group.together.do(_counted, f, me, args, kwargs, is_all)


def _counted(f: Callable[..., Any], me: Rows, args: Any, kwargs: Any, is_all: bool) -> torch.Tensor:
    group = me.rows.split.group
    return crossings.blend(f(me.local, *args[1:], **kwargs).long(), 1.0, group) >= (group.world if is_all else 1)


knows("any", partial(over_rows, False), (torch, torch.Tensor))
knows("all", partial(over_rows, True), (torch, torch.Tensor))
