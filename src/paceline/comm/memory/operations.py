"""Implements torch's reduce operations on host tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from paceline.comm.memory.pipelined_allreduce import Reduce, add

Op = dist.ReduceOp
REDUCTIONS: dict[Any, Reduce] = {
    Op.SUM: add,
    Op.AVG: add,
    Op.PRODUCT: lambda into, other: into.mul_(other),
    Op.MIN: lambda into, other: torch.minimum(into, other, out=into),
    Op.MAX: lambda into, other: torch.maximum(into, other, out=into),
    Op.BAND: lambda into, other: into.bitwise_and_(other),
    Op.BOR: lambda into, other: into.bitwise_or_(other),
    Op.BXOR: lambda into, other: into.bitwise_xor_(other),
}


class MemoryOperation(NamedTuple):
    reduce: Reduce
    divide: Callable[[torch.Tensor], Any]  # applied to the result: AVG divides by the number of workers
    words: str  # added to the name of the collective, so that a mismatch between workers is found and named


def operation(op: Any, dtype: torch.dtype, world: int) -> MemoryOperation:
    """The operation for a torch ReduceOp. Raises ValueError if `dtype` does not support `op`, before the collective
    begins, so that no peer is left inside it."""
    return _operation(int(getattr(op, "op", op)), dtype, world)


@functools.cache
def _operation(number: int, dtype: torch.dtype, world: int) -> MemoryOperation:
    kind = Op.RedOpType(number)
    name = getattr(kind, "name", str(kind))
    if kind not in REDUCTIONS or not _can_reduce(kind, dtype):
        raise ValueError(f"The backend paceline cannot reduce {str(dtype).removeprefix('torch.')} by {name}.")
    divide: Callable[[torch.Tensor], Any] = _leave
    if kind == Op.AVG:
        divide = functools.partial(_divide, by=world)
    return MemoryOperation(REDUCTIONS[kind], divide, "" if kind == Op.SUM else f" by {name}")


def _leave(flat: torch.Tensor) -> None:
    pass


@functools.cache
def _can_reduce(kind: Any, dtype: torch.dtype) -> bool:
    """Whether the operation works on this dtype: tries it on one element."""
    one, other = torch.ones(1, dtype=dtype, device="cpu"), torch.ones(1, dtype=dtype, device="cpu")
    try:
        REDUCTIONS[kind](one, other)
        if kind == Op.AVG:
            _divide(one, by=1)
    except (RuntimeError, TypeError):  # NotImplementedError is the former
        return False
    return True


def _divide(flat: torch.Tensor, *, by: int) -> None:
    if flat.is_floating_point() or flat.is_complex():
        flat.div_(by)
    else:
        flat.div_(by, rounding_mode="trunc")
