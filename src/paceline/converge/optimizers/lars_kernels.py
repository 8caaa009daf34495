"""Triton kernels for LARS over all tensors at once: one pass over memory for sums of squares, one for the update.

Imported only if Triton is installed. The formulas are in `lars`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from paceline.converge.optimizers.chunk_kernels import (
    SPAN,
    TYPES,
    add_up_if_last,
    add_up_shards,
    address,
    on_device,
    place,
    read,
    run,
    write,
)
from paceline.converge.optimizers.tensor_tables import Table


@triton.jit
def squares_of_chunk(p, g, left, factor, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    weight = read(p, at, left, WHOLE)
    grad = read(g, at, left, WHOLE) * factor
    return tl.sum(weight * weight), tl.sum(grad * grad)


@triton.jit
def lars_squares(rows, tensor_of_chunk, partial, sums, arrived, scale, found, tensors, chunks, P: tl.constexpr,
                 G: tl.constexpr, SCALED: tl.constexpr, FOUND: tl.constexpr, BLOCK: tl.constexpr,
                 SPAN: tl.constexpr):  # fmt: skip
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        chunk = tl.program_id(0)
        tensor, start, left = place(rows, tensor_of_chunk, chunk, tensors, BLOCK)
        g = address(rows, 3, tensor, tensors, G) + start
        p = address(rows, 5, tensor, tensors, P) + start
        factor = 1.0
        if SCALED:
            factor = 1.0 / tl.load(scale)
        if (left >= BLOCK) & ((p.to(tl.int64) | g.to(tl.int64)) % 16 == 0):
            of_weight, of_grad = squares_of_chunk(p, g, left, factor, True, BLOCK)
        else:
            of_weight, of_grad = squares_of_chunk(p, g, left, factor, False, BLOCK)
        add_up_if_last(rows, partial, sums, arrived, of_weight, of_grad, chunk, tensor, tensors, chunks, BLOCK, SPAN)


@triton.jit
def update_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV: tl.constexpr, SCALED: tl.constexpr,
                 WHOLE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    at = tl.arange(0, BLOCK)
    weight = read(p, at, left, WHOLE)
    grad = read(g, at, left, WHOLE) * factor
    if SCALED:
        write(g, at, left, grad, WHOLE)
    update = rate * (sign * grad + decay * weight)
    # Rounded to the stored type, because the next step reads the rounded value.
    buffer = (momentum * read(b, at, left, WHOLE) + update).to(b.dtype.element_ty)
    write(b, at, left, buffer, WHOLE)
    if NESTEROV:
        update = update + momentum * buffer.to(tl.float32)
    else:
        update = buffer.to(tl.float32)
    write(p, at, left, weight - lr * update, WHOLE)


@triton.jit
def lars_update(rows, tensor_of_chunk, sums, lr_tensor, scale, found, tensors, chunks, sign, lr, momentum, decay,
                trust, eps, P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, NESTEROV: tl.constexpr,
                TENSOR_LR: tl.constexpr, SCALED: tl.constexpr, FOUND: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        # In reverse order: memory that the previous pass touched last may still be in the cache.
        chunk = chunks - 1 - tl.program_id(0)
        tensor, start, left = place(rows, tensor_of_chunk, chunk, tensors, BLOCK)
        g = address(rows, 3, tensor, tensors, G) + start
        p = address(rows, 5, tensor, tensors, P) + start
        b = address(rows, 6, tensor, tensors, S) + start
        treatment = tl.load(rows + 2 * tensors + tensor)
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
    """One step of a table's tensors, in two launches. The host waits only if tensors are sharded."""
    lr, lr_tensor = on_device(group["lr"], table)
    parameter, grad, state = (TYPES[dtype] for dtype in table.dtypes)
    scaled, found, nesterov = scale is not None, found_inf is not None, bool(group["nesterov"])
    run(
        lars_squares,
        table,
        None if scaled or found else "squares",
        table.rows,
        table.tensor_of_chunk,
        table.partial,
        table.sums,
        table.arrived,
        scale,
        found_inf,
        table.tensors,
        table.chunks,
        parameter,
        grad,
        scaled,
        found,
        table.block,
        SPAN,
    )
    add_up_shards(table)
    run(
        lars_update,
        table,
        None if scaled or found or lr_tensor is not None else f"update {nesterov}",
        table.rows,
        table.tensor_of_chunk,
        table.sums,
        lr_tensor,
        scale,
        found_inf,
        table.tensors,
        table.chunks,
        # As floats: a kernel that was given an integer once is compiled for integers.
        -1.0 if group["maximize"] else 1.0,
        lr,
        float(group["momentum"]),
        float(group["weight_decay"]),
        float(group["trust"]),
        float(group["eps"]),
        parameter,
        grad,
        state,
        nesterov,
        lr_tensor is not None,
        scaled,
        found,
        table.block,
    )
