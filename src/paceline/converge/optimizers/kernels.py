"""Triton kernels for LAMB and LARS over all tensors at once. Imported only if Triton is installed.

Each has two passes over memory: one for sums of squares (and, of LAMB, the moments), one for the update. The formulas
are in `lamb` and `lars`.

A tensor's rows in the table are those of `tensor_tables.Table`: 0 length, 1 first chunk, 2 treatment; addresses of 3
the gradient, 4 the step count, 5 the parameter, from 6 on the moments. Kernels contain these numbers literally, because
Triton compares a kernel's global constants at every launch, which takes about a microsecond each. A full chunk whose
memory begins at a multiple of 16 bytes is read in words of 16 bytes; others element by element, under a mask.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.converge.optimizers.tensor_tables import Table

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


# -- LAMB -------------------------------------------------------------------------------------------------------------


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
def update_lamb_chunk(p, m, v, left, rate, rest1, root2, eps, decay, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
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
            update_lamb_chunk(p, m, v, left, rate, rest1, root2, eps, decay, True, BLOCK)
        else:
            update_lamb_chunk(p, m, v, left, rate, rest1, root2, eps, decay, False, BLOCK)


def launch_lamb(group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
    """One step of a table's tensors, in two launches. The host waits only if tensors are sharded."""
    beta1, beta2 = map(float, group["betas"])
    log1, log2 = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
    # All numbers as floats: a kernel that was given an integer once is compiled for integers.
    sign, eps, decay = -1.0 if group["maximize"] else 1.0, float(group["eps"]), float(group["weight_decay"])
    lr, lr_tensor = on_device(group["lr"], table)
    parameter, grad, state = (TYPES[dtype] for dtype in table.dtypes)
    scaled, found = scale is not None, found_inf is not None
    memory: tuple[Any, ...] = (
        table.rows,
        table.tensor_of_chunk,
        table.partial,
        table.sums,
        table.arrived,
        scale,
        found_inf,
    )
    numbers: tuple[Any, ...] = (
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
    )
    kinds: tuple[Any, ...] = parameter, grad, state, scaled, found, table.block, SPAN
    run(lamb_moments, table, None if scaled or found else "moments", *memory, *numbers, *kinds)
    add_up_shards(table)
    memory = table.rows, table.tensor_of_chunk, table.sums, lr_tensor, found_inf
    numbers = table.tensors, table.chunks, lr, log1, log2, eps, decay
    kinds = parameter, state, lr_tensor is not None, found, table.block
    run(lamb_update, table, None if found or lr_tensor is not None else "update", *memory, *numbers, *kinds)


# -- LARS -------------------------------------------------------------------------------------------------------------


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
def update_lars_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV: tl.constexpr,
                      SCALED: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
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
            update_lars_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV, SCALED, True, BLOCK)
        else:
            update_lars_chunk(p, g, b, left, factor, sign, lr, rate, momentum, decay, NESTEROV, SCALED, False, BLOCK)


def launch_lars(group: dict[str, Any], table: Table, scale: Tensor | None, found_inf: Tensor | None) -> None:
    """One step of a table's tensors, in two launches. The host waits only if tensors are sharded."""
    lr, lr_tensor = on_device(group["lr"], table)
    parameter, grad, state = (TYPES[dtype] for dtype in table.dtypes)
    scaled, found, nesterov = scale is not None, found_inf is not None, bool(group["nesterov"])
    memory: tuple[Any, ...] = (
        table.rows,
        table.tensor_of_chunk,
        table.partial,
        table.sums,
        table.arrived,
        scale,
        found_inf,
    )
    kinds: tuple[Any, ...] = parameter, grad, scaled, found, table.block, SPAN
    run(lars_squares, table, None if scaled or found else "squares", *memory, table.tensors, table.chunks, *kinds)
    add_up_shards(table)
    kind = None if scaled or found or lr_tensor is not None else f"update {nesterov}"
    memory = table.rows, table.tensor_of_chunk, table.sums, lr_tensor, scale, found_inf
    # As floats: a kernel that was given an integer once is compiled for integers.
    settings = (float(group[name]) for name in ("momentum", "weight_decay", "trust", "eps"))
    numbers: tuple[Any, ...] = table.tensors, table.chunks, -1.0 if group["maximize"] else 1.0, lr, *settings
    kinds = parameter, grad, state, nesterov, lr_tensor is not None, scaled, found, table.block
    run(lars_update, table, kind, *memory, *numbers, *kinds)
