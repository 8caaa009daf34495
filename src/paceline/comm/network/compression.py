"""Fewer bytes between hosts, for other numbers: how a host's sum is compressed on the network leg.

Off unless asked for. Each compressor says in `notice` what it changes, for a run to print. What a host adds up within
itself is never compressed. All workers of a wire end with the same bits, so that replicas do not part; but the numbers
are no longer those of one process.

    bf16        half of the bytes (a quarter of float64's); 8 significant bits
    fp16        half of the bytes; 11 significant bits near a block's largest value, fewer far below it
    PowerSGD    a few per cent of the bytes; low-rank matrices (powersgd.py)
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import pad

from paceline.comm.network.algorithms import all_reduce
from paceline.comm.network.costs import Costs
from paceline.comm.network.direct import Cast, Codec, direct
from paceline.comm.network.messages import Wire

WIDE = (torch.float32, torch.float64)  # what is compressed; every other dtype travels as it is
BLOCK = 2048  # values that share a scale in fp16
HIGHEST = 15  # a block's largest value is scaled to just below 2 ** 15: half of what fp16 can hold


class Compressor(Protocol):
    """Sums a part of a gradient over a wire, with fewer bytes."""

    @property
    def notice(self) -> str:
        """What it changes, in a sentence."""

    @property
    def whole(self) -> bool:
        """Whether it wants a bucket's part at once, and not in slabs."""

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        """Every worker of the wire calls it; `part` is changed in place, and lies at `offset` in its bucket. With one
        worker on the wire nothing travels and nothing changes."""


class Bfloat16:
    """Travels as bfloat16.

    Each host's sum is rounded to 8 significant bits (relative error up to 2⁻⁸), the sums over hosts are made in the
    tensor's own precision, and are rounded once more. The range is float32's; a float64 beyond it becomes infinite.
    Every host's own sum enters the total of the stretch that it adds up without being rounded."""

    whole = False
    notice = (
        "Between hosts gradients travel as bfloat16: each host's sum and the total are rounded to 8 significant bits "
        "(at most 0.4 % of a value each time). The loss will differ from an uncompressed run's."
    )

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        _travel(part, wire, Cast(torch.bfloat16), costs)


class Float16:
    """Travels as float16, in blocks of 2048 values with a power of two as scale.

    The scale follows from each block's largest finite value, so that nothing finite can overflow, whatever the loss
    scale is; infinities and NaN arrive as such. Rounded like bfloat16, but to 11 significant bits (relative error up to
    2⁻¹¹). A value less than 2⁻²⁸ of the largest in its block has fewer bits, one less than 2⁻⁴⁰ of it becomes zero."""

    whole = False
    notice = (
        "Between hosts gradients travel as scaled float16: each host's sum and the total are rounded to 11 significant "
        "bits (at most 0.05 % of a value each time), and values some 10¹² times smaller than their neighbours become "
        "zero. The loss will differ from an uncompressed run's."
    )

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        _travel(part, wire, Scaled(part.dtype), costs)


def _travel(part: torch.Tensor, wire: Wire, codec: Codec, costs: Costs | None) -> None:
    if wire.world == 1 or not part.numel():
        return
    if part.dtype not in WIDE:
        return all_reduce(part, wire, costs=costs)
    with torch.no_grad():
        direct(part, wire, codec)


class Scaled:
    """float16 with a scale for each block: the halves' bits, and after them one exponent a block, as int16."""

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: of the values, one of `WIDE`."""
        self.dtype = dtype

    def empty(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty(values.numel() + -(-values.numel() // BLOCK), dtype=torch.int16)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        blocks = _in_blocks(values)
        largest = blocks.abs().amax(1)
        if not bool(largest.isfinite().all()):
            largest = torch.where(blocks.isfinite(), blocks.abs(), 0.0).amax(1)
        highest = 126 if self.dtype is torch.float32 else 1022  # whose power of two, and its inverse, are exact
        shift = (HIGHEST - torch.frexp(largest).exponent).clamp_(max=highest)
        scaled = (blocks * self._power(shift)).half().flatten()[: values.numel()]
        return torch.cat([scaled.view(torch.int16), shift.to(torch.int16)])

    def decode(self, encoded: torch.Tensor, length: int) -> torch.Tensor:
        blocks = _in_blocks(encoded[:length].view(torch.float16)).to(self.dtype)
        return blocks.mul_(self._power(-encoded[length:])).flatten()[:length]

    def _power(self, exponents: torch.Tensor) -> torch.Tensor:
        """2 to these, made of bits: exact on every machine. One a row."""
        if self.dtype is torch.float32:
            return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32).unsqueeze(1)
        return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64).unsqueeze(1)


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    return pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
