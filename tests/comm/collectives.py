"""Collectives of torch.distributed as data: drawn by a test, made by every worker on any group.

A `Call` says everything, so that all workers and both backends make the same one. Numbers are small and whole: sums and
products of them are exact in every dtype, and any misplaced one shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128)
OPS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
LAYOUTS = ("in a row", "transposed", "with gaps")


@dataclass(frozen=True)
class Call:
    name: str
    subset: int = 0
    dtype: torch.dtype = torch.float32
    rows: int = 4
    op: str = "SUM"
    root: int = 0  # a position in the group
    layout: str = "in a row"
    later: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Side:
    """One worker's side of a call on one backend."""

    call: Call
    group: Any
    dtype: torch.dtype
    layout: str

    @property
    def world(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def root(self) -> int:
        return self.call.root % self.world

    def made(self, rows: int, salt: int = 0) -> torch.Tensor:
        """An input, other on every worker."""
        generator = torch.Generator().manual_seed(self.call.seed * 1000 + salt * 100 + self.rank)
        low = 0 if self.call.dtype in (torch.uint8, torch.bool) else -3
        whole = torch.randint(low, 4, (rows, 3), generator=generator)
        return self.blank(rows).copy_(whole > 1 if self.call.dtype is torch.bool else whole)

    def blank(self, rows: int) -> torch.Tensor:
        match self.layout:
            case "transposed":
                return torch.zeros(3, rows, dtype=self.dtype).t()
            case "with gaps":
                return torch.zeros(rows, 6, dtype=self.dtype)[:, ::2]
        return torch.zeros(rows, 3, dtype=self.dtype)

    @property
    def options(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.call.later}

    @property
    def op(self) -> Any:
        return getattr(dist.ReduceOp, self.call.op)

    def splits(self) -> list[list[int]]:
        """Rows from each to each."""
        rng = random.Random(self.call.seed)
        return [[rng.randint(0, self.call.rows) for _ in range(self.world)] for _ in range(self.world)]


Result = tuple[Any, list[torch.Tensor]]  # the work, and all tensors that it read or wrote


def all_reduce(side: Side) -> Result:
    tensor = side.made(side.call.rows)
    return dist.all_reduce(tensor, side.op, **side.options), [tensor]


def all_reduce_coalesced(side: Side) -> Result:
    tensors = [side.made(side.call.rows + more, more) for more in range(3)]
    with dist._coalescing_manager(side.group, async_ops=side.call.later) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, side.op, group=side.group)
    return manager if side.call.later else None, tensors


def broadcast(side: Side) -> Result:
    tensor = side.made(side.call.rows)
    return dist.broadcast(tensor, group_src=side.root, **side.options), [tensor]


def reduce(side: Side) -> Result:
    tensor = side.made(side.call.rows)
    work = dist.reduce(tensor, group_dst=side.root, op=side.op, **side.options)
    return work, [tensor] if side.rank == side.root else []  # undefined elsewhere


def all_gather(side: Side) -> Result:
    tensor = side.made(side.call.rows)
    outputs = [side.blank(side.call.rows) for _ in range(side.world)]
    return dist.all_gather(outputs, tensor, **side.options), [tensor, *outputs]


def all_gather_into_tensor(side: Side) -> Result:
    tensor, output = side.made(side.call.rows), side.blank(side.call.rows * side.world)
    return dist.all_gather_into_tensor(output, tensor, **side.options), [tensor, output]


def all_gather_into_tensor_coalesced(side: Side) -> Result:
    tensors = [side.made(side.call.rows + more, more) for more in range(2)]
    outputs = [side.blank(len(tensor) * side.world) for tensor in tensors]
    with dist._coalescing_manager(side.group, async_ops=side.call.later) as manager:
        for output, tensor in zip(outputs, tensors, strict=True):
            dist.all_gather_into_tensor(output, tensor, group=side.group)
    return manager if side.call.later else None, [*tensors, *outputs]


def reduce_scatter(side: Side) -> Result:
    pieces = [side.made(side.call.rows, peer) for peer in range(side.world)]
    output = side.blank(side.call.rows)
    return dist.reduce_scatter(output, pieces, side.op, **side.options), [*pieces, output]


def reduce_scatter_tensor(side: Side) -> Result:
    tensor, output = side.made(side.call.rows * side.world), side.blank(side.call.rows)
    return dist.reduce_scatter_tensor(output, tensor, side.op, **side.options), [tensor, output]


def reduce_scatter_tensor_coalesced(side: Side) -> Result:
    tensors = [side.made((side.call.rows + more) * side.world, more) for more in range(2)]
    outputs = [side.blank(side.call.rows + more) for more in range(2)]
    with dist._coalescing_manager(side.group, async_ops=side.call.later) as manager:
        for output, tensor in zip(outputs, tensors, strict=True):
            dist.reduce_scatter_tensor(output, tensor, side.op, group=side.group)
    return manager if side.call.later else None, [*tensors, *outputs]


def all_to_all(side: Side) -> Result:
    pieces = [side.made(side.call.rows, peer) for peer in range(side.world)]
    outputs = [side.blank(side.call.rows) for _ in range(side.world)]
    if dist.get_backend(side.group) == "gloo":  # which has learnt it in torch 2.12 only
        joined = torch.cat(pieces)
        given = torch.empty_like(joined)
        dist.all_to_all_single(given, joined, group=side.group)
        for output, part in zip(outputs, given.tensor_split(side.world), strict=True):
            output.copy_(part)
        return None, [*pieces, *outputs]
    return dist.all_to_all(outputs, pieces, **side.options), [*pieces, *outputs]


def all_to_all_single(side: Side) -> Result:
    tensor, output = side.made(side.call.rows * side.world), side.blank(side.call.rows * side.world)
    return dist.all_to_all_single(output, tensor, **side.options), [tensor, output]


def all_to_all_single_uneven(side: Side) -> Result:
    splits = side.splits()
    ours, theirs = splits[side.rank], [row[side.rank] for row in splits]
    tensor, output = side.made(sum(ours)), side.blank(sum(theirs))
    return dist.all_to_all_single(output, tensor, theirs, ours, **side.options), [tensor, output]


def gather(side: Side) -> Result:
    tensor = side.made(side.call.rows)
    outputs = [side.blank(side.call.rows) for _ in range(side.world)] if side.rank == side.root else []
    work = dist.gather(tensor, outputs or None, group_dst=side.root, **side.options)
    return work, [tensor, *outputs]


def scatter(side: Side) -> Result:
    pieces = [side.made(side.call.rows, peer) for peer in range(side.world)] if side.rank == side.root else []
    output = side.blank(side.call.rows)
    return dist.scatter(output, pieces or None, group_src=side.root, **side.options), [*pieces, output]


def barrier(side: Side) -> Result:
    return dist.barrier(**side.options), []


COLLECTIVES: dict[str, Callable[[Side], Result]] = {
    function.__name__: function
    for function in (
        all_reduce,
        all_reduce_coalesced,
        broadcast,
        reduce,
        all_gather,
        all_gather_into_tensor,
        all_gather_into_tensor_coalesced,
        reduce_scatter,
        reduce_scatter_tensor,
        reduce_scatter_tensor_coalesced,
        all_to_all,
        all_to_all_single,
        all_to_all_single_uneven,
        gather,
        scatter,
        barrier,
    )
}


def is_reduction(name: str) -> bool:
    return "reduce" in name


def can(name: str, dtype: torch.dtype, op: str) -> bool:
    """Whether torch promises this."""
    if not is_reduction(name):
        return op == "SUM"  # which it does not look at
    if dtype.is_complex:
        return op == "SUM"
    if dtype is torch.bool:
        return op not in ("AVG", "PRODUCT")
    return not (dtype.is_floating_point and op.startswith("B"))
