"""The output of a linear layer that computes query, key and value at once, of which each worker has some heads.

A worker's heads are not neighbours in such an output: they lie in its first, second and last third. So they are kept as
a DTensor (…, 3, width), split along the width, until the script takes the thirds apart: `view` to (…, 3, heads, size),
`chunk(3, -1)`, `split(width, -1)`. Any other function gets the whole output, gathered.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.script.rows.spread_tensor import SpreadTensor
from paceline.spread.dtensors import laid, local_of, whole_of
from paceline.spread.functions import SHAPES
from paceline.torch_private import make_wrapper_subclass, no_torch_function

THIRDS = 3
ASKED = {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_meta", "is_sparse", "is_quantized", "itemsize"}
ASKED |= {"retains_grad", "is_nested", "names"}


def is_fact(f: Any) -> bool:
    """Whether the function asks for a shape or a type."""
    name = getattr(f, "__name__", "")
    return name in SHAPES or (name == "__get__" and getattr(f.__self__, "__name__", "") in ASKED)


class FusedHeads(SpreadTensor):
    """`local` is the DTensor (…, 3, width)."""

    local: DTensor

    @staticmethod
    def __new__(cls: type[FusedHeads], thirds: DTensor) -> FusedHeads:
        shape = (*thirds.shape[:-2], thirds.shape[-2] * thirds.shape[-1])
        made: FusedHeads = make_wrapper_subclass(cls, shape, dtype=thirds.dtype, device=thirds.device)
        made.local = thirds
        return made

    @classmethod
    def in_parts(cls, f: Any, args: Any, kwargs: Any) -> Any:
        if is_fact(f):
            with no_torch_function():
                return f(*args, **kwargs)
        if args and isinstance(args[0], FusedHeads):
            return args[0]._apart(getattr(f, "__name__", ""), args[1:], kwargs)
        return NotImplemented

    def wholes(self, alive: Any) -> list[torch.Tensor]:
        return [whole_of(self.local).flatten(-2)]

    def _apart(self, name: str, args: Any, kwargs: Any) -> Any:
        """The thirds apart, if that is what the function does; else NotImplemented."""
        last, width = self.dim() - 1, self.local.shape[-1]
        if kwargs and set(kwargs) != {"dim"}:
            return NotImplemented
        if name in ("chunk", "split") and args[:1] == ((THIRDS if name == "chunk" else width),):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            return self.local.unbind(-2) if dim in (-1, last) else NotImplemented
        if name in ("view", "reshape") and not kwargs:
            sizes = list(args[0]) if len(args) == 1 and not isinstance(args[0], int) else list(args)
        elif name == "unflatten" and not kwargs and args[0] in (-1, last):
            sizes = [*self.shape[:-1], *args[1]]
        else:
            return NotImplemented
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = -(self.numel() // math.prod(sizes)) or -1
        if sizes[: last + 1] != [*self.shape[:-1], THIRDS]:
            return NotImplemented
        inner, group = sizes[last + 1 :], self.local.device_mesh.size()
        if math.prod(inner) != width or not inner or inner[0] % group:
            return NotImplemented
        local = local_of(self.local)
        return laid(local.reshape(*local.shape[:-1], inner[0] // group, *inner[1:]), last + 1, self.local.device_mesh)
