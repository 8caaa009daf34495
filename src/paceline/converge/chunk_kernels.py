"""What the kernels of both optimizers share. Imported only where Triton is.

A tensor's rows in the table: addresses first, then length, first chunk and treatment. A chunk that is whole and whose
memory begins at a multiple of 16 bytes is read in words of 16; others element by element, under a mask.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
WARPS = 8
SPAN = 1024  # partial sums that are added up at a time


@triton.jit
def address(rows, row, tensor, tensors, dtype: tl.constexpr):
    """A pointer to elements of this type, out of the table."""
    return tl.load(rows + row * tensors + tensor).to(tl.pointer_type(dtype), bitcast=True)


@triton.jit
def read(pointer, at, left, WHOLE: tl.constexpr):
    """Elements of a chunk, in float32; zero behind the tensor's end."""
    if WHOLE:
        found = tl.load(tl.multiple_of(pointer + at, 16))
    else:
        found = tl.load(pointer + at, mask=at < left, other=0.0)
    return found.to(tl.float32)


@triton.jit
def write(pointer, at, left, values, WHOLE: tl.constexpr):
    rounded = values.to(pointer.dtype.element_ty)
    if WHOLE:
        tl.store(tl.multiple_of(pointer + at, 16), rounded)
    else:
        tl.store(pointer + at, rounded, mask=at < left)


@triton.jit
def add_up_chunks(rows, partial, sums, found, tensors, chunks, LENGTH: tl.constexpr, STEP: tl.constexpr,
                  FOUND: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """The two sums of one tensor, in the order of its chunks. Counts its step, where it has a count."""
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        tensor = tl.program_id(0)
        length = tl.load(rows + LENGTH * tensors + tensor)
        first = tl.load(rows + (LENGTH + 1) * tensors + tensor)
        mine = (length + BLOCK - 1) // BLOCK
        at = tl.arange(0, SPAN)
        left = tl.zeros([SPAN], tl.float32)
        right = tl.zeros([SPAN], tl.float32)
        for start in range(0, mine, SPAN):
            inside = start + at < mine
            left += tl.load(partial + first + start + at, mask=inside, other=0.0)
            right += tl.load(partial + chunks + first + start + at, mask=inside, other=0.0)
        tl.store(sums + tensor, tl.sum(left))
        tl.store(sums + tensors + tensor, tl.sum(right))
        if STEP >= 0:
            count = address(rows, STEP, tensor, tensors, tl.float32)
            tl.store(count, tl.load(count) + 1.0)


def launch_sums(table: Any, found: Any, *, length: int, step: int) -> None:
    """Adds up the chunks' sums of every tensor, and over the workers that hold other shards of it."""
    from paceline.converge.layerwise import add_up

    add_up_chunks[(table.tensors,)](
        table.rows,
        table.partial,
        table.sums,
        found,
        table.tensors,
        table.partial.shape[1],
        LENGTH=length,
        STEP=step,
        FOUND=found is not None,
        BLOCK=table.block,
        SPAN=SPAN,
        num_warps=4,
    )
    if table.sharded:
        add_up(table.sums, table.mesh, table.sharded)


def on_device(lr: Any, table: Any) -> tuple[float, Tensor | None]:
    """A learning rate as a kernel takes it: a number, or a tensor that the host need not read."""
    return (0.0, lr.to(device=table.device, dtype=torch.float32)) if isinstance(lr, Tensor) else (lr, None)
