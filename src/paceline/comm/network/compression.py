"""Lossy compression of the gradients sent between hosts: fewer bytes, slightly different results.

Off by default. The `notice` of each compressor says what changes; a run prints it. Sums within a host are never
compressed. All workers of a wire get the same bits, so that replicas do not diverge, but the results differ from those
of a single process.

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
from paceline.comm.network.gloo_wire import Wire

WIDE = (torch.float32, torch.float64)  # the dtypes that are compressed; every other dtype is sent unchanged
BLOCK = 2048  # values that share a scale in fp16
HIGHEST = 15  # exponent: a block's largest value is scaled to just below 2 ** 15, half of the fp16 maximum


class Compressor(Protocol):
    """All-reduces a part of a gradient bucket over a wire, with fewer bytes."""

    @property
    def notice(self) -> str:
        """One sentence for the user that says what changes."""

    @property
    def whole(self) -> bool:
        """Whether the compressor needs its part of the bucket in one piece instead of in slabs."""

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        """Every worker of the wire calls it. `part` is changed in place; `offset` is its offset in the bucket. With one
        worker on the wire nothing is sent and nothing changes."""


class Bfloat16:
    """Sends gradients as bfloat16.

    Each host's sum is rounded to 8 significant bits (relative error up to 2⁻⁸). The sums over hosts are computed in the
    tensor's own precision and rounded once more. The range is that of float32; a float64 value beyond it becomes
    infinite. A host does not round its own contribution to the part that this host sums."""

    whole = False
    notice = (
        "Gradients are sent between hosts as bfloat16: each host's sum and the total are rounded to 8 significant bits "
        "(a relative error of at most 0.4 % each time). The loss will differ from that of an uncompressed run."
    )

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        _all_reduce_encoded(part, wire, Cast(torch.bfloat16), costs)


class Float16:
    """Sends gradients as float16, in blocks of 2048 values that share a power of two as scale.

    The scale follows from each block's largest finite value, so that finite values never overflow at any loss scale;
    infinities and NaN stay infinities and NaN. Rounding works as for bfloat16, but to 11 significant bits (relative
    error up to 2⁻¹¹). A value below 2⁻²⁸ of the largest in its block keeps fewer bits; a value below 2⁻⁴⁰ becomes
    zero."""

    whole = False
    notice = (
        "Gradients are sent between hosts as scaled float16: each host's sum and the total are rounded to 11 "
        "significant bits (a relative error of at most 0.05 % each time), and values about 10¹² times smaller than the "
        "largest value in their block become zero. The loss will differ from that of an uncompressed run."
    )

    def all_reduce(self, part: torch.Tensor, wire: Wire, *, offset: int = 0, costs: Costs | None = None) -> None:
        _all_reduce_encoded(part, wire, Scaled(part.dtype), costs)


def _all_reduce_encoded(part: torch.Tensor, wire: Wire, codec: Codec, costs: Costs | None) -> None:
    if wire.world == 1 or not part.numel():
        return
    if part.dtype not in WIDE:
        return all_reduce(part, wire, costs=costs)
    with torch.no_grad():
        direct(part, wire, codec)


class Scaled:
    """float16 with a scale per block. Encoded as int16: the bits of the float16 values, then one exponent per block."""

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: the dtype of the values, one of `WIDE`."""
        self.dtype = dtype

    def empty(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty(values.numel() + -(-values.numel() // BLOCK), dtype=torch.int16, device="cpu")

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        blocks = _in_blocks(values)
        largest = blocks.abs().amax(1)
        if not bool(largest.isfinite().all()):
            largest = torch.where(blocks.isfinite(), blocks.abs(), 0.0).amax(1)
        highest = 126 if self.dtype is torch.float32 else 1022  # 2 ** highest and its inverse are exact in this dtype
        exponent = torch.frexp(largest).exponent
        shift = (HIGHEST - exponent).clamp_(max=highest)
        scaled = (blocks * self._power(shift)).half()
        if bool((exponent > highest + 1).any()):  # rounded up, the largest numbers of the dtype would overflow
            below = 2.0**HIGHEST * (1 - 2.0**-11)
            scaled = torch.where(blocks.isfinite(), scaled.clamp(-below, below), scaled)
        scaled = scaled.flatten()[: values.numel()]
        return torch.cat([scaled.view(torch.int16), shift.to(torch.int16)])

    def decode(self, encoded: torch.Tensor, length: int) -> torch.Tensor:
        blocks = _in_blocks(encoded[:length].view(torch.float16)).to(self.dtype)
        return blocks.mul_(self._power(-encoded[length:])).flatten()[:length]

    def _power(self, exponents: torch.Tensor) -> torch.Tensor:
        """2 ** exponents as a column. Built from bits, so that the result is exact on every machine."""
        if self.dtype is torch.float32:
            return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32).unsqueeze(1)
        return ((exponents.to(torch.int64) + 1023) << 52).view(torch.float64).unsqueeze(1)


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    return pad(values, (0, -values.numel() % BLOCK)).view(-1, BLOCK)
