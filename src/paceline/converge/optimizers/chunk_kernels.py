"""Triton functions shared by the kernels of LARS and LAMB. Imported only if Triton is installed.

A tensor's rows in the table are those of `tensor_tables.Table`: 0 length, 1 first chunk, 2 treatment; addresses of 3
the gradient, 4 the step count, 5 the parameter, from 6 on the moments. Kernels contain these numbers literally, because
Triton compares a kernel's global constants at every launch, which takes about a microsecond each. A full chunk whose
memory begins at a multiple of 16 bytes is read in words of 16 bytes; others element by element, under a mask.
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
SPAN = 1024  # partial sums added up at a time


@triton.jit
def address(rows, row, tensor, tensors, dtype: tl.constexpr):
    """A pointer to elements of this type, from the table."""
    return tl.load(rows + row * tensors + tensor).to(tl.pointer_type(dtype), bitcast=True)


@triton.jit
def read(pointer, at, left, WHOLE: tl.constexpr):
    """Elements of a chunk, in float32; zero past the tensor's end."""
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
    """The tensor of a chunk, the chunk's offset in it, and the number of elements from there to the tensor's end."""
    tensor = tl.load(tensor_of_chunk + chunk)
    start = (chunk - tl.load(rows + tensors + tensor)) * BLOCK
    return tensor, start, tl.load(rows + tensor) - start


@triton.jit
def add_up_if_last(rows, partial, sums, arrived, left, right, chunk, tensor, tensors, chunks,
                   BLOCK: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """Stores a chunk's two sums. The last program of a tensor to do so adds all of them up, in the order of the chunks
    whatever the order of arrival, and gets True: by then all other programs have read the tensor's row."""
    tl.store(partial + chunk, left)
    tl.store(partial + chunks + chunk, right)
    # All stores of this program's threads must be visible before the count.
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
            # Other programs have just written these sums: bypass the L1 cache.
            lefts += tl.load(partial + first + start + at, mask=inside, other=0.0, cache_modifier=".cg")
            rights += tl.load(partial + chunks + first + start + at, mask=inside, other=0.0, cache_modifier=".cg")
        tl.store(sums + tensor, tl.sum(lefts))
        tl.store(sums + tensors + tensor, tl.sum(rights))
        tl.store(arrived + tensor, 0)  # for the next step
    return last


def run(kernel: Any, table: Any, kind: str | None, *arguments: Any) -> None:
    """Launches a kernel with one program per chunk. Triton checks the type and alignment of all arguments at every
    call, to find the compiled kernel. If the arguments cannot have changed since the last call of this `kind` with this
    table, the compiled kernel is called directly. `kind` is None if they can: a tensor of the script is among them."""
    ready = None if kind is None else table.ready.get(kind)
    if ready is not None:
        ready(*arguments)
        return
    compiled = kernel[(table.chunks,)](*arguments, num_warps=WARPS)
    if kind is not None and compiled is not None:  # Triton's interpreter compiles nothing
        table.ready[kind] = compiled[(table.chunks, 1, 1)]


def add_up_shards(table: Any) -> None:
    """Sums over the workers that hold other shards of the same tensors. Each of them calls it; waits for the others."""
    from paceline.converge.optimizers.layerwise import add_up

    if table.sharded:
        add_up(table.sums, table.mesh, table.sharded)


def on_device(lr: Any, table: Any) -> tuple[float, Tensor | None]:
    """A learning rate as kernel arguments: a number, or a tensor that the host need not read."""
    return (0.0, lr.to(device=table.device, dtype=torch.float32)) if isinstance(lr, Tensor) else (float(lr), None)
