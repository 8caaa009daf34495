"""Triton kernels for LAMB over all tensors at once: one pass over memory for moments and sums of squares, one for the
update.

Imported only if Triton is installed. The formulas are in `lamb`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import math
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
def one_minus_power(log, count):
    """1 − βᵗ from log β. Uses the series for small t·log β, where the difference of two numbers near 1 loses digits."""
    x = count * log
    series = 1.0 + x / 8.0
    series = 1.0 + x / 7.0 * series
    series = 1.0 + x / 6.0 * series
    series = 1.0 + x / 5.0 * series
    series = 1.0 + x / 4.0 * series
    series = 1.0 + x / 3.0 * series
    series = 1.0 + x / 2.0 * series
    return tl.where(x > -0.5, -x * series, 1.0 - tl.exp(x))


@triton.jit
def update_of(weight, first, second, rest1, root2, eps, decay):
    return first / rest1 / (tl.sqrt(second) / root2 + eps) + decay * weight


@triton.jit
def moments_of_chunk(p, g, m, v, left, factor, sign, rest1, root2, keep1, beta2, keep2, eps, decay,
                     SCALED: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    at = tl.arange(0, BLOCK)
    weight = read(p, at, left, WHOLE)
    grad = read(g, at, left, WHOLE) * factor
    if SCALED:
        write(g, at, left, grad, WHOLE)
    grad = sign * grad
    first = read(m, at, left, WHOLE)
    first = first + keep1 * (grad - first)
    second = read(v, at, left, WHOLE) * beta2 + keep2 * grad * grad
    # Rounded to the stored type, because the update reads the rounded values.
    first = first.to(m.dtype.element_ty)
    second = second.to(v.dtype.element_ty)
    write(m, at, left, first, WHOLE)
    write(v, at, left, second, WHOLE)
    update = update_of(weight, first.to(tl.float32), second.to(tl.float32), rest1, root2, eps, decay)
    if not WHOLE:
        update = tl.where(at < left, update, 0.0)
    return tl.sum(weight * weight), tl.sum(update * update)


@triton.jit
def lamb_moments(rows, tensor_of_chunk, partial, sums, arrived, scale, found, tensors, chunks, sign, keep1, beta2,
                 keep2, log1, log2, eps, decay, P: tl.constexpr, G: tl.constexpr, S: tl.constexpr,
                 SCALED: tl.constexpr, FOUND: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        chunk = tl.program_id(0)
        tensor, start, left = place(rows, tensor_of_chunk, chunk, tensors, BLOCK)
        g = address(rows, 3, tensor, tensors, G) + start
        step = address(rows, 4, tensor, tensors, tl.float32)
        p = address(rows, 5, tensor, tensors, P) + start
        m = address(rows, 6, tensor, tensors, S) + start
        v = address(rows, 7, tensor, tensors, S) + start
        count = tl.load(step) + 1.0
        rest1 = one_minus_power(log1, count)
        root2 = tl.sqrt(one_minus_power(log2, count))
        decay = tl.where(tl.load(rows + 2 * tensors + tensor) & 2 != 0, decay, 0.0)
        factor = 1.0
        if SCALED:
            factor = 1.0 / tl.load(scale)
        whole = (left >= BLOCK) & ((p.to(tl.int64) | g.to(tl.int64) | m.to(tl.int64) | v.to(tl.int64)) % 16 == 0)
        if whole:
            weights, updates = moments_of_chunk(p, g, m, v, left, factor, sign, rest1, root2, keep1, beta2, keep2,
                                                eps, decay, SCALED, True, BLOCK)  # fmt: skip
        else:
            weights, updates = moments_of_chunk(p, g, m, v, left, factor, sign, rest1, root2, keep1, beta2, keep2,
                                                eps, decay, SCALED, False, BLOCK)  # fmt: skip
        last = add_up_if_last(rows, partial, sums, arrived, weights, updates, chunk, tensor, tensors, chunks, BLOCK,
                              SPAN)  # fmt: skip
        if last:
            tl.store(step, count)


@triton.jit
def update_chunk(p, m, v, left, rate, rest1, root2, eps, decay, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    weight = read(p, at, left, WHOLE)
    update = update_of(weight, read(m, at, left, WHOLE), read(v, at, left, WHOLE), rest1, root2, eps, decay)
    write(p, at, left, weight - rate * update, WHOLE)


@triton.jit
def lamb_update(rows, tensor_of_chunk, sums, lr_tensor, found, tensors, chunks, lr, log1, log2, eps, decay,
                P: tl.constexpr, S: tl.constexpr, TENSOR_LR: tl.constexpr, FOUND: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    skipped = False
    if FOUND:
        skipped = tl.load(found) != 0.0
    if not skipped:
        # In reverse order: memory that the previous pass touched last may still be in the cache.
        chunk = chunks - 1 - tl.program_id(0)
        tensor, start, left = place(rows, tensor_of_chunk, chunk, tensors, BLOCK)
        p = address(rows, 5, tensor, tensors, P) + start
        m = address(rows, 6, tensor, tensors, S) + start
        v = address(rows, 7, tensor, tensors, S) + start
        count = tl.load(address(rows, 4, tensor, tensors, tl.float32))
        rest1 = one_minus_power(log1, count)
        root2 = tl.sqrt(one_minus_power(log2, count))
        treatment = tl.load(rows + 2 * tensors + tensor)
        decay = tl.where(treatment & 2 != 0, decay, 0.0)
        weights = tl.sqrt(tl.load(sums + tensor))
        updates = tl.sqrt(tl.load(sums + tensors + tensor))
        adapted = (treatment & 1 != 0) & (weights > 0.0) & (updates > 0.0)
        rate = lr
        if TENSOR_LR:
            rate = tl.load(lr_tensor)
        rate = rate * tl.where(adapted, weights / tl.where(adapted, updates, 1.0), 1.0)
        whole = (left >= BLOCK) & ((p.to(tl.int64) | m.to(tl.int64) | v.to(tl.int64)) % 16 == 0)
        if whole:
            update_chunk(p, m, v, left, rate, rest1, root2, eps, decay, True, BLOCK)
        else:
            update_chunk(p, m, v, left, rate, rest1, root2, eps, decay, False, BLOCK)


def launch(group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
    """One step of a table's tensors, in two launches. The host waits only if tensors are sharded."""
    beta1, beta2 = map(float, group["betas"])
    log1, log2 = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
    # All numbers as floats: a kernel that was given an integer once is compiled for integers.
    sign, eps, decay = -1.0 if group["maximize"] else 1.0, float(group["eps"]), float(group["weight_decay"])
    lr, lr_tensor = on_device(group["lr"], table)
    parameter, grad, state = (TYPES[dtype] for dtype in table.dtypes)
    scaled, found = scale is not None, found_inf is not None
    run(
        lamb_moments,
        table,
        None if scaled or found else "moments",
        table.rows,
        table.tensor_of_chunk,
        table.partial,
        table.sums,
        table.arrived,
        scale,
        found_inf,
        table.tensors,
        table.chunks,
        sign,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        log1,
        log2,
        eps,
        decay,
        parameter,
        grad,
        state,
        scaled,
        found,
        table.block,
        SPAN,
    )
    add_up_shards(table)
    run(
        lamb_update,
        table,
        None if found or lr_tensor is not None else "update",
        table.rows,
        table.tensor_of_chunk,
        table.sums,
        lr_tensor,
        found_inf,
        table.tensors,
        table.chunks,
        lr,
        log1,
        log2,
        eps,
        decay,
        parameter,
        state,
        lr_tensor is not None,
        found,
        table.block,
    )
