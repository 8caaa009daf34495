"""What the kernels of both optimizers share. Imported only where Triton is.

A tensor's rows in the table are those of `fused.Table`: 0 length, 1 first chunk, 2 treatment; addresses of 3 the
gradient, 4 the step count, 5 the parameter, from 6 on the moments. Kernels write these numbers out: a global constant
of a kernel is compared at every launch, and takes a microsecond each. A chunk that is whole and whose memory begins at
a multiple of 16 bytes is read in words of 16; others element by element, under a mask.
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
def place(rows, tensor_of_chunk, chunk, tensors, BLOCK: tl.constexpr):
    """The tensor that a chunk is of, where in it the chunk begins, and how many elements there are from there on."""
    tensor = tl.load(tensor_of_chunk + chunk)
    start = (chunk - tl.load(rows + tensors + tensor)) * BLOCK
    return tensor, start, tl.load(rows + tensor) - start


@triton.jit
def add_up_if_last(rows, partial, sums, arrived, left, right, chunk, tensor, tensors, chunks,
                   BLOCK: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """Leaves a chunk's two sums. The program that is the last of its tensor to do so adds all of them up, in the order
    of the chunks whoever came when, and is told so: all others have read by then what they read of the tensor's row."""
    tl.store(partial + chunk, left)
    tl.store(partial + chunks + chunk, right)
    # What any thread of this program has stored comes before the count, for whoever sees the count.
    tl.debug_barrier()
    before = tl.atomic_add(arrived + tensor, 1, sem="acq_rel", scope="gpu")
    mine = tl.cdiv(tl.load(rows + tensor), BLOCK).to(tl.int32)
    last = before + 1 >= mine  # a tensor without elements has one chunk
    if last:
        first = tl.load(rows + tensors + tensor)
        at = tl.arange(0, SPAN)
        lefts = tl.zeros([SPAN], tl.float32)
        rights = tl.zeros([SPAN], tl.float32)
        for start in range(0, mine, SPAN):
            inside = start + at < mine
            # Other programs wrote them a moment ago: read where they arrive, not in a cache of this processor's own.
            lefts += tl.load(partial + first + start + at, mask=inside, other=0.0, cache_modifier=".cg")
            rights += tl.load(partial + chunks + first + start + at, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(sums + tensor, tl.sum(lefts))
        tl.store(sums + tensors + tensor, tl.sum(rights))
        tl.store(arrived + tensor, 0)  # for the next step
    return last


def run(kernel: Any, table: Any, kind: str | None, *arguments: Any) -> None:
    """Launches a kernel, with a program for each chunk. Triton looks at the type and the alignment of all arguments at
    every call, to find what it compiled for them. Where they cannot have changed since the last call of this `kind`
    with this table, that is called at once. None: they can, as a tensor of the script's is among them."""
    ready = None if kind is None else table.ready.get(kind)
    if ready is not None:
        ready(*arguments)
        return
    compiled = kernel[(table.chunks,)](*arguments, num_warps=WARPS)
    if kind is not None and compiled is not None:  # Triton's interpreter compiles nothing
        table.ready[kind] = compiled[(table.chunks, 1, 1)]


def add_up_shards(table: Any) -> None:
    """Over the workers that hold other shards of the same tensors. Each of them calls it, and waits for the others."""
    from paceline.converge.optimizers.layerwise import add_up

    if table.sharded:
        add_up(table.sums, table.mesh, table.sharded)


def on_device(lr: Any, table: Any) -> tuple[float, Tensor | None]:
    """A learning rate as a kernel takes it: a number, or a tensor that the host need not read."""
    return (0.0, lr.to(device=table.device, dtype=torch.float32)) if isinstance(lr, Tensor) else (float(lr), None)
