"""Triton kernels for ghost batch norm: forward reads memory twice and writes once, backward reads four times and
writes once.

Imported only if Triton is installed. The formulas are in `functional`. Memory is seen in one of two ways: as rows of C
channels (channels last, or no pixels), or as planes of S pixels, C planes per sample. A ghost is a run of rows, or of
samples. Sums are taken over differences from the ghost's first value, and in a fixed order. A ghost's mean is kept as
two numbers: rounded to float32, and the rest. The rounding error of a large mean may be a visible part of the distance
between the mean and values that lie close together.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def stretch(ghost, ghosts, size, batch, pixels):
    """The first row of a ghost, and its length in rows."""
    first = ghost * size
    last = tl.where(ghost == ghosts - 1, batch, first + size)
    return first.to(tl.int64) * pixels, (last - first) * pixels


@triton.jit
def part_of(length, part, parts, unit):
    """The begin and end of one part of a ghost, in multiples of a unit."""
    each = tl.cdiv(tl.cdiv(length, parts), unit) * unit
    begin = tl.minimum(part * each, length)
    return begin, tl.minimum(begin + each, length)


# -- rows ------------------------------------------------------------------------------------------------------------


@triton.jit
def sums_of_rows(x, dy, mean, out, batch, size, ghosts, channels, pixels, parts, BACKWARD: tl.constexpr,
                 ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Forward: mean, and sum of squares about it, of a part of a ghost; means are counted from the ghost's first value,
    which is left in `mean`. Backward: sums of dy and of dy·(x − mean)."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    ghost, part = tl.program_id(1), tl.program_id(2)
    start, length = stretch(ghost, ghosts, size, batch, pixels)
    begin, end = part_of(length, part, parts, ROWS)
    here = channel < channels
    x += start * channels
    dy += start * channels
    at_mean = mean + ghost * channels + channel
    if BACKWARD:
        shift = tl.load(at_mean, mask=here, other=0.0)
        rest = tl.load(at_mean + ghosts * channels, mask=here, other=0.0)
    else:
        shift = tl.load(x + channel, mask=here, other=0.0).to(tl.float32)
        if part == 0:
            tl.store(at_mean, shift, mask=here)
    one = tl.zeros([ROWS, CHANNELS], tl.float32)
    two = tl.zeros([ROWS, CHANNELS], tl.float32)
    for row in range(begin, end, ROWS):
        rows = row + tl.arange(0, ROWS)
        at = rows[:, None].to(tl.int64) * channels + channel[None, :]
        inside = (rows < end)[:, None] & here[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, value - shift[None, :], 0.0)
        if BACKWARD:
            centred -= rest[None, :]  # outside, the gradient is 0
            grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
            one += grad
            two += grad * centred
        else:
            one += centred
            two += centred * centred
    first, second = tl.sum(one, 0), tl.sum(two, 0)
    if not BACKWARD:
        count = tl.maximum(end - begin, 1).to(tl.float32)
        second = second - first * first / count
        first = first / count
    to = (part * ghosts + ghost) * channels + channel
    tl.store(out + to, first, mask=here)
    tl.store(out + parts * ghosts * channels + to, second, mask=here)


@triton.jit
def apply_to_rows(x, dy, out, mean, scale, shift, slope, batch, size, ghosts, channels, pixels, BACKWARD: tl.constexpr,
                  ROWS: tl.constexpr, CHANNELS: tl.constexpr, TIMES: tl.constexpr):  # fmt: skip
    """Forward: scale·(x − mean) + shift. Backward: scale·dy + slope·(x − mean) + shift."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    ghost = tl.program_id(2)
    start, length = stretch(ghost, ghosts, size, batch, pixels)
    here = channel < channels
    of_ghost = ghost * channels + channel
    centre = tl.load(mean + of_ghost, mask=here, other=0.0)
    rest = tl.load(mean + ghosts * channels + of_ghost, mask=here, other=0.0)
    factor = tl.load(scale + of_ghost, mask=here, other=0.0)
    if BACKWARD:
        offset = tl.load(shift + of_ghost, mask=here, other=0.0)
        tilt = tl.load(slope + of_ghost, mask=here, other=0.0)
    else:
        offset = tl.load(shift + channel, mask=here, other=0.0)
    x += start * channels
    dy += start * channels
    out += start * channels
    for time in range(TIMES):
        rows = (tl.program_id(0) * TIMES + time) * ROWS + tl.arange(0, ROWS)
        at = rows[:, None].to(tl.int64) * channels + channel[None, :]
        inside = (rows < length)[:, None] & here[None, :]
        centred = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[None, :]) - rest[None, :]
        if BACKWARD:
            grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
            found = factor[None, :] * grad + tilt[None, :] * centred + offset[None, :]
        else:
            found = factor[None, :] * centred + offset[None, :]
        tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


# -- planes ----------------------------------------------------------------------------------------------------------


@triton.jit
def sums_of_planes(x, dy, mean, out, batch, size, ghosts, channels, pixels, parts, BACKWARD: tl.constexpr,
                   SAMPLES: tl.constexpr, PIXELS: tl.constexpr):  # fmt: skip
    """As `sums_of_rows`, for one channel of a part of a ghost."""
    channel, ghost, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, length = stretch(ghost, ghosts, size, batch, 1)
    begin, end = part_of(length, part, parts, SAMPLES)
    base = (start * channels + channel) * pixels
    x += base
    dy += base
    at_mean = mean + ghost * channels + channel
    if BACKWARD:
        shift = tl.load(at_mean)
        rest = tl.load(at_mean + ghosts * channels)
    else:
        shift = tl.load(x).to(tl.float32)
        if part == 0:
            tl.store(at_mean, shift)
    one = tl.zeros([SAMPLES, PIXELS], tl.float32)
    two = tl.zeros([SAMPLES, PIXELS], tl.float32)
    for sample in range(begin, end, SAMPLES):
        samples = sample + tl.arange(0, SAMPLES)
        for pixel in range(0, pixels, PIXELS):
            at_pixel = pixel + tl.arange(0, PIXELS)
            at = samples[:, None].to(tl.int64) * channels * pixels + at_pixel[None, :]
            inside = (samples < end)[:, None] & (at_pixel < pixels)[None, :]
            value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            centred = tl.where(inside, value - shift, 0.0)
            if BACKWARD:
                centred -= rest  # outside, the gradient is 0
                grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
                one += grad
                two += grad * centred
            else:
                one += centred
                two += centred * centred
    first, second = tl.sum(one), tl.sum(two)
    if not BACKWARD:
        count = tl.maximum((end - begin) * pixels, 1).to(tl.float32)
        second = second - first * first / count
        first = first / count
    to = (part * ghosts + ghost) * channels + channel
    tl.store(out + to, first)
    tl.store(out + parts * ghosts * channels + to, second)


@triton.jit
def apply_to_planes(x, dy, out, mean, scale, shift, slope, batch, size, ghosts, channels, pixels,
                    BACKWARD: tl.constexpr, PLANES: tl.constexpr, PIXELS: tl.constexpr):  # fmt: skip
    """As `apply_to_rows`, for some planes, which may belong to several ghosts."""
    plane = tl.program_id(0) * PLANES + tl.arange(0, PLANES)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    there = plane < batch * channels
    channel = plane % channels
    of_ghost = tl.minimum(plane // channels // size, ghosts - 1) * channels + channel
    centre = tl.load(mean + of_ghost, mask=there, other=0.0)
    rest = tl.load(mean + ghosts * channels + of_ghost, mask=there, other=0.0)
    factor = tl.load(scale + of_ghost, mask=there, other=0.0)
    if BACKWARD:
        offset = tl.load(shift + of_ghost, mask=there, other=0.0)
        tilt = tl.load(slope + of_ghost, mask=there, other=0.0)
    else:
        offset = tl.load(shift + channel, mask=there, other=0.0)
    at = plane[:, None].to(tl.int64) * pixels + pixel[None, :]
    inside = there[:, None] & (pixel < pixels)[None, :]
    centred = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - centre[:, None]) - rest[:, None]
    if BACKWARD:
        grad = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        found = factor[:, None] * grad + tilt[:, None] * centred + offset[:, None]
    else:
        found = factor[:, None] * centred + offset[:, None]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


# -- between the passes over memory ------------------------------------------------------------------------------------


@triton.jit
def counts(ghost, ghosts, size, batch, pixels, each, parts, unit, PARTS: tl.constexpr):
    """The number of values per channel in each part of a ghost, and in the ghost. A row has `each` values."""
    _, length = stretch(ghost, ghosts, size, batch, pixels)
    part = tl.arange(0, PARTS)
    begin, end = part_of(length, part, parts, unit)
    return part, ((end - begin) * each).to(tl.float32), (length * each).to(tl.float32)


@triton.jit
def finish_forward(partial, weight, mean, variance, rstd, scale, batch, size, ghosts, channels, pixels, each, parts,
                   unit, eps, WEIGHT: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """A ghost's mean and variance, from those of its parts. `mean` holds the ghost's first value, from which the parts'
    means are counted; after it comes what the mean loses when it is rounded."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    ghost = tl.program_id(1)
    part, count, total = counts(ghost, ghosts, size, batch, pixels, each, parts, unit, PARTS)
    here = channel < channels
    inside = (part < parts)[:, None] & here[None, :]
    at = (part[:, None] * ghosts + ghost) * channels + channel[None, :]
    of_part = tl.load(partial + at, mask=inside, other=0.0)
    squares = tl.load(partial + parts * ghosts * channels + at, mask=inside, other=0.0)
    offset = tl.sum(count[:, None] * of_part, 0) / total
    away = of_part - offset[None, :]
    spread = tl.sum(tl.where(inside, squares + count[:, None] * away * away, 0.0), 0) / total
    inverse = 1.0 / tl.sqrt(spread + eps)
    gain = inverse
    if WEIGHT:
        gain = inverse * tl.load(weight + channel, mask=here, other=0.0).to(tl.float32)
    to = ghost * channels + channel
    shift = tl.load(mean + to, mask=here, other=0.0)
    centre = shift + offset
    added = centre - shift  # what of the offset is in the sum (Knuth's two-sum)
    tl.store(mean + to, centre, mask=here)
    tl.store(mean + ghosts * channels + to, (shift - (centre - added)) + (offset - added), mask=here)
    tl.store(variance + to, spread, mask=here)
    tl.store(rstd + to, inverse, mask=here)
    tl.store(scale + to, gain, mask=here)


@triton.jit
def track_whole_batch(mean, variance, running_mean, running_var, batch, size, ghosts, channels, pixels, momentum,
                      GHOSTS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """Updates the running statistics with the mean and unbiased variance of the whole batch, from its ghosts'."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    here = channel < channels
    total = (batch * pixels).to(tl.float32)
    centre = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, ghosts, GHOSTS):
        ghost = start + tl.arange(0, GHOSTS)
        last = tl.where(ghost == ghosts - 1, batch, (ghost + 1) * size)
        share = tl.where(ghost < ghosts, ((last - ghost * size) * pixels).to(tl.float32) / total, 0.0)
        inside = (ghost < ghosts)[:, None] & here[None, :]
        at = ghost[:, None] * channels + channel[None, :]
        centre += tl.sum(share[:, None] * tl.load(mean + at, mask=inside, other=0.0), 0)
    spread = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, ghosts, GHOSTS):
        ghost = start + tl.arange(0, GHOSTS)
        last = tl.where(ghost == ghosts - 1, batch, (ghost + 1) * size)
        share = tl.where(ghost < ghosts, ((last - ghost * size) * pixels).to(tl.float32) / total, 0.0)
        inside = (ghost < ghosts)[:, None] & here[None, :]
        at = ghost[:, None] * channels + channel[None, :]
        away = tl.load(mean + at, mask=inside, other=0.0) - centre[None, :]
        within = tl.load(variance + at, mask=inside, other=0.0)
        spread += tl.sum(share[:, None] * (within + away * away), 0)
    spread = spread * (total / (total - 1.0))
    old = tl.load(running_mean + channel, mask=here, other=0.0).to(tl.float32)
    kept = (old + momentum * (centre - old)).to(running_mean.dtype.element_ty)
    tl.store(running_mean + channel, kept, mask=here)
    old = tl.load(running_var + channel, mask=here, other=0.0).to(tl.float32)
    kept = (old + momentum * (spread - old)).to(running_var.dtype.element_ty)
    tl.store(running_var + channel, kept, mask=here)


@triton.jit
def finish_backward(partial, rstd, scale, slope, shift, of_ghosts, batch, size, ghosts, channels, pixels, each, parts,
                    unit, PARTS: tl.constexpr, CHANNELS: tl.constexpr):  # fmt: skip
    """The coefficients of x's gradient, and a ghost's contribution to the weight's and the bias's gradients."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    ghost = tl.program_id(1)
    part, _, total = counts(ghost, ghosts, size, batch, pixels, each, parts, unit, PARTS)
    here = channel < channels
    inside = (part < parts)[:, None] & here[None, :]
    at = (part[:, None] * ghosts + ghost) * channels + channel[None, :]
    plain = tl.sum(tl.load(partial + at, mask=inside, other=0.0), 0)
    crossed = tl.sum(tl.load(partial + parts * ghosts * channels + at, mask=inside, other=0.0), 0)
    to = ghost * channels + channel
    inverse = tl.load(rstd + to, mask=here, other=0.0)
    gain = tl.load(scale + to, mask=here, other=0.0)
    tl.store(slope + to, -gain * inverse * inverse * crossed / total, mask=here)
    tl.store(shift + to, -gain * plain / total, mask=here)
    tl.store(of_ghosts + to, crossed * inverse, mask=here)
    tl.store(of_ghosts + ghosts * channels + to, plain, mask=here)
