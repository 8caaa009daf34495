"""LARS over all tensors at once: sums of squares in one pass over memory, momentum and update in another.

Imported only where Triton is. The formulas are in `lars`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from paceline.converge.chunk_kernels import TYPES, WARPS, address, launch_sums, on_device, read, write
from paceline.converge.fused import Table

# Rows of the table.
PARAMETER = tl.constexpr(0)
BUFFER = tl.constexpr(1)
LENGTH = tl.constexpr(3)
FIRST_CHUNK = tl.constexpr(4)
TREATMENT = tl.constexpr(5)


@triton.jit
def squares_of_chunk(p, g, left, factor, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    weight = read(p, at, left, WHOLE)
    grad = read(g, at, left, WHOLE) * factor
    return tl.sum(weight * weight), tl.sum(grad * grad)


@triton.jit
def lars_squares(rows, grads, tensor_of_chunk, partial, scale, found, tensors, chunks, P: tl.constexpr, G: tl.constexpr,
                 SCALED: tl.constexpr, FOUND: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        chunk = tl.program_id(0)
        tensor = tl.load(tensor_of_chunk + chunk)
        start = (chunk - tl.load(rows + FIRST_CHUNK * tensors + tensor)) * BLOCK
        left = tl.load(rows + LENGTH * tensors + tensor) - start
        p = address(rows, PARAMETER, tensor, tensors, P) + start
        g = address(grads, 0, tensor, tensors, G) + start
        factor = 1.0
        if SCALED:
            factor = 1.0 / tl.load(scale)
        if (left >= BLOCK) & ((p.to(tl.int64) | g.to(tl.int64)) % 16 == 0):
            of_weight, of_grad = squares_of_chunk(p, g, left, factor, True, BLOCK)
        else:
            of_weight, of_grad = squares_of_chunk(p, g, left, factor, False, BLOCK)
        tl.store(partial + chunk, of_weight)
        tl.store(partial + chunks + chunk, of_grad)


@triton.jit
def update_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV: tl.constexpr, SCALED: tl.constexpr,
                 WHOLE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    at = tl.arange(0, BLOCK)
    weight = read(p, at, left, WHOLE)
    grad = read(g, at, left, WHOLE) * factor
    if SCALED:
        write(g, at, left, grad, WHOLE)
    update = rate * (sign * grad + decay * weight)
    # As the next step will read it: rounded to what is kept.
    buffer = (momentum * read(b, at, left, WHOLE) + update).to(b.dtype.element_ty)
    write(b, at, left, buffer, WHOLE)
    if NESTEROV:
        update = update + momentum * buffer.to(tl.float32)
    else:
        update = buffer.to(tl.float32)
    write(p, at, left, weight - lr * update, WHOLE)


@triton.jit
def lars_update(rows, grads, tensor_of_chunk, sums, lr_tensor, scale, found, tensors, chunks, sign, lr, momentum, decay,
                trust, eps, P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, NESTEROV: tl.constexpr,
                TENSOR_LR: tl.constexpr, SCALED: tl.constexpr, FOUND: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        # Backwards: what the pass before touched last may still be in the cache.
        chunk = chunks - 1 - tl.program_id(0)
        tensor = tl.load(tensor_of_chunk + chunk)
        start = (chunk - tl.load(rows + FIRST_CHUNK * tensors + tensor)) * BLOCK
        left = tl.load(rows + LENGTH * tensors + tensor) - start
        p = address(rows, PARAMETER, tensor, tensors, P) + start
        g = address(grads, 0, tensor, tensors, G) + start
        b = address(rows, BUFFER, tensor, tensors, S) + start
        treatment = tl.load(rows + TREATMENT * tensors + tensor)
        of_weight = tl.sqrt(tl.load(sums + tensor))
        of_grad = tl.sqrt(tl.load(sums + tensors + tensor))
        adapted = (treatment & 1 != 0) & (of_weight > 0.0) & (of_grad > 0.0)
        rate = tl.where(adapted, trust * of_weight / (of_grad + decay * of_weight + eps), 1.0)
        decay = tl.where(treatment & 2 != 0, decay, 0.0)
        factor = 1.0
        if SCALED:
            factor = 1.0 / tl.load(scale)
        if TENSOR_LR:
            lr = tl.load(lr_tensor)
        if (left >= BLOCK) & ((p.to(tl.int64) | g.to(tl.int64) | b.to(tl.int64)) % 16 == 0):
            update_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV, SCALED, True, BLOCK)
        else:
            update_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV, SCALED, False, BLOCK)


def launch(group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
    """One step of a table's tensors. Three launches; the host waits for nothing."""
    lr, lr_tensor = on_device(group["lr"], table)
    parameter, grad, state = (TYPES[dtype] for dtype in table.dtypes)
    if table.chunks:
        lars_squares[(table.chunks,)](
            table.rows,
            table.grads,
            table.tensor_of_chunk,
            table.partial,
            scale,
            found_inf,
            table.tensors,
            table.chunks,
            P=parameter,
            G=grad,
            SCALED=scale is not None,
            FOUND=found_inf is not None,
            BLOCK=table.block,
            num_warps=WARPS,
        )
    launch_sums(table, found_inf, length=LENGTH.value, step=-1)
    if table.chunks:
        lars_update[(table.chunks,)](
            table.rows,
            table.grads,
            table.tensor_of_chunk,
            table.sums,
            lr_tensor,
            scale,
            found_inf,
            table.tensors,
            table.chunks,
            -1.0 if group["maximize"] else 1.0,
            lr,
            group["momentum"],
            group["weight_decay"],
            group["trust"],
            group["eps"],
            P=parameter,
            G=grad,
            S=state,
            NESTEROV=group["nesterov"],
            TENSOR_LR=lr_tensor is not None,
            SCALED=scale is not None,
            FOUND=found_inf is not None,
            BLOCK=table.block,
            num_warps=WARPS,
        )
