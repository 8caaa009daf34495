"""The Triton kernel of `philox`. In a file of its own, because it can only be read where Triton is installed."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["seed", "offset4", "first", "n", "threads"])  # one kernel for all their values
def rows_kernel(
    x,
    y,
    mask,
    seed,
    offset4,
    first,
    n,
    threads,
    p,
    scale,
    VEC: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A program handles BLOCK groups of four neighbours. torch gives a thread VEC neighbours a round: 4 of float32, 8
    of two bytes; the group's index in the whole tensor gives its round and thread, and so its Philox counter. WIDE: an
    index in the whole tensor takes 64 bits, in which a division takes longer than all else."""
    begin = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    element = first + (begin * BLOCK + tl.arange(0, BLOCK)) * 4
    turn, thread = (element // VEC) // threads, (element // VEC) % threads
    turn = turn * (VEC // 4) + (element % VEC) // 4
    counter = (offset4 + turn).to(tl.int64)
    high, zero = (counter >> 32).to(tl.uint32), (thread * 0).to(tl.uint32)
    r0, r1, r2, r3 = tl.philox(seed, counter.to(tl.uint32), high, thread.to(tl.uint32), zero)
    # Neighbours are stored by neighbours: the four numbers of a group side by side.
    r = tl.join(tl.join(r0, r2), tl.join(r1, r3)).reshape(4 * BLOCK)
    u = r.to(tl.uint32).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    at = begin * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    inside = at < n
    value = tl.load(x + at, inside).to(tl.float32)
    kept = u < p
    tl.store(y + at, tl.where(kept, value * scale, 0.0), inside)
    tl.store(mask + at, kept, inside)
