"""Launches the Triton kernels of ghost batch norm, and chooses their shapes. Imported only if Triton is installed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from paceline.converge.ghost_bn import kernels
from paceline.converge.ghost_bn.split import Ghosts

TILE = 4096  # elements that a program holds at a time
PARTS = 64  # most programs per ghost for its sums
BUSY = 8  # programs per multiprocessor
TIMES = 4  # tiles that each program over rows writes
WARPS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch in memory, and how the kernels iterate over it."""

    ghosts: Ghosts
    channels: int
    pixels: int
    rows: bool  # channels are adjacent in memory; else pixels are
    unit: int  # rows of a tile; for planes, samples
    wide: int  # channels of a tile; for planes, pixels
    parts: int

    @property
    def stretch(self) -> int:
        """Rows per sample if a ghost is counted in rows; else 1."""
        return self.pixels if self.rows else 1

    @property
    def each(self) -> int:
        """Values per channel in one row, or in one sample."""
        return 1 if self.rows else self.pixels

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.ghosts.batch, self.ghosts.size, self.ghosts.count, self.channels


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running: Any, ghosts: Ghosts, eps: float
) -> tuple[Tensor, Tensor, Any]:
    """The output, x as the kernels read it, and the statistics for `backward`. `running` is None, or the running mean
    and variance, which are updated, and their momentum."""
    x, rows = _laid_out(x)
    shape = _shape(x, rows, ghosts)
    table = x.new_empty((5, ghosts.count, shape.channels), dtype=torch.float32)
    mean, _, variance, rstd, scale = table.unbind()  # the kernels keep what the mean lost by rounding after it
    partial = _sums(x, x, mean, shape, backward=False)
    blocks, width = _channel_blocks(shape.channels)
    kernels.finish_forward[(blocks, ghosts.count)](
        partial, weight, mean, variance, rstd, scale, *shape.sizes, shape.stretch, shape.each, shape.parts, shape.unit,
        eps, WEIGHT=weight is not None, PARTS=triton.next_power_of_2(shape.parts), CHANNELS=width, num_warps=4,
    )  # fmt: skip
    if running is not None:
        running_mean, running_var, momentum = running
        kernels.track_whole_batch[(blocks,)](
            mean, variance, running_mean, running_var, *shape.sizes, shape.pixels, momentum,
            GHOSTS=min(64, triton.next_power_of_2(ghosts.count)), CHANNELS=width, num_warps=4,
        )  # fmt: skip
    y = torch.empty_like(x)
    offset = x.new_zeros(shape.channels, dtype=torch.float32) if bias is None else bias
    _apply(x, x, y, mean, scale, offset, mean, shape, backward=False)
    return y, x, (table, rows)


def backward(dy: Tensor, x: Tensor, kept: Any, ghosts: Ghosts) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of the weight and of the bias; the last two in float32."""
    table, rows = kept
    mean, _, _, rstd, scale = table.unbind()
    shape = _shape(x, rows, ghosts)
    dy = dy if dy.stride() == x.stride() else torch.empty_like(x).copy_(dy)
    partial = _sums(x, dy, mean, shape, backward=True)
    made = torch.empty_like(table[:4])
    slope, shift, of_ghosts = made[0], made[1], made[2:]
    blocks, width = _channel_blocks(shape.channels)
    kernels.finish_backward[(blocks, ghosts.count)](
        partial, rstd, scale, slope, shift, of_ghosts, *shape.sizes, shape.stretch, shape.each, shape.parts, shape.unit,
        PARTS=triton.next_power_of_2(shape.parts), CHANNELS=width, num_warps=4,
    )  # fmt: skip
    dx = torch.empty_like(x)
    _apply(x, dy, dx, mean, scale, shift, slope, shape, backward=True)
    of_weight, of_bias = of_ghosts.sum(1).unbind()
    return dx, of_weight, of_bias


def _sums(x: Tensor, dy: Tensor, mean: Tensor, shape: Shape, *, backward: bool) -> Tensor:
    partial = mean.new_empty((2, shape.parts, *mean.shape))
    launch: Any
    if shape.rows:
        grid = (triton.cdiv(shape.channels, shape.wide), shape.ghosts.count, shape.parts)
        launch, names = kernels.sums_of_rows[grid], ("ROWS", "CHANNELS")
    else:
        launch = kernels.sums_of_planes[(shape.channels, shape.ghosts.count, shape.parts)]
        names = ("SAMPLES", "PIXELS")
    tile = dict(zip(names, (shape.unit, shape.wide), strict=True))
    launch(
        x, dy, mean, partial, *shape.sizes, shape.pixels, shape.parts, BACKWARD=backward, **tile, num_warps=WARPS
    )  # fmt: skip
    return partial


def _apply(
    x: Tensor, dy: Tensor, out: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, slope: Tensor, shape: Shape,
    *, backward: bool,
) -> None:  # fmt: skip
    tensors = (x, dy, out, mean, scale, shift, slope)
    if shape.rows:
        longest = shape.ghosts.samples[-1] if shape.ghosts.count == 1 else max(shape.ghosts.samples[-2:])
        tiles = triton.cdiv(longest * shape.pixels, shape.unit * TIMES)
        kernels.apply_to_rows[(tiles, triton.cdiv(shape.channels, shape.wide), shape.ghosts.count)](
            *tensors, *shape.sizes, shape.pixels,
            BACKWARD=backward, ROWS=shape.unit, CHANNELS=shape.wide, TIMES=TIMES, num_warps=WARPS,
        )  # fmt: skip
    else:
        planes = TILE // shape.wide
        grid = (triton.cdiv(shape.ghosts.batch * shape.channels, planes), triton.cdiv(shape.pixels, shape.wide))
        kernels.apply_to_planes[grid](
            *tensors, *shape.sizes, shape.pixels,
            BACKWARD=backward, PLANES=planes, PIXELS=shape.wide, num_warps=WARPS,
        )  # fmt: skip


def _laid_out(x: Tensor) -> tuple[Tensor, bool]:
    """x in one of the two layouts that the kernels support, and whether that is rows."""
    if x.dim() == 2 or x.numel() == x.shape[0] * x.shape[1]:
        return x.contiguous(), True
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        return x, True
    return x.contiguous(), False


def _shape(x: Tensor, rows: bool, ghosts: Ghosts) -> Shape:
    channels = x.shape[1]
    pixels = x.numel() // (x.shape[0] * channels)
    if rows:
        wide = min(128, triton.next_power_of_2(channels))
        unit = TILE // wide
        length, others = ghosts.size * pixels, triton.cdiv(channels, wide) * ghosts.count
    else:
        wide = min(1024, triton.next_power_of_2(pixels))
        unit = min(TILE // wide, triton.next_power_of_2(ghosts.size))
        length, others = ghosts.size, channels * ghosts.count
    wanted = triton.cdiv(BUSY * _multiprocessors(x.device), others)
    parts = max(1, min(PARTS, wanted, triton.cdiv(length, unit)))
    return Shape(ghosts, channels, pixels, rows, unit, wide, parts)


def _channel_blocks(channels: int) -> tuple[int, int]:
    width = min(32, triton.next_power_of_2(channels))
    return triton.cdiv(channels, width), width


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
