"""A digest of tensors: one 64-bit number for all of their bits, computed on the tensors' own device.

The bits are read as 32-bit words in rows of `ROW`. Each word is multiplied by a fixed odd number for its column, each
row's sum by one for its row, and everything is added modulo 2^64:

    digest = Σ_rows v_row · Σ_columns w_column · word

A single word that differs always changes the digest: |w · difference| < 2^63 is never 0, and v is odd. Several words
that differ, in any pattern (swapped rows, flipped signs), leave it unchanged with a probability of about 2^-31. No
floating-point sum is involved, so nothing is lost by rounding. Nothing here waits for a GPU.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

ROW = 4096  # words
ROWS = 1 << 16  # row weights; a longer stream starts over
AT_ONCE = {"cpu": 16}  # rows per operation: what fits into a core's cache
MOST_AT_ONCE = 1024  # rows per operation on other devices: 16 MB of words
WORD = 4  # bytes
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.complex128: 1e-9, torch.complex64: 1e-4}
COARSE = 2e-2  # for types with fewer digits


@torch.no_grad()
def digest(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """One int64 number per device, in the order of the devices' first tensors. Tensors without readable bits count as
    nothing."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        for part in parts(tensor):
            by_device.setdefault(part.device, []).append(part)
    return [_sum(device, words) for device, words in by_device.items()]


@torch.no_grad()
def sketch(tensor: torch.Tensor) -> torch.Tensor | None:
    """A projection of a floating-point tensor onto fixed random numbers, and its squared norm: two such pairs tell
    rounding from a real difference. None for other types."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    try:
        dense = [part for part in _dense(tensor.detach()) if part.is_floating_point() and part.numel()]
        flats = [_copied_once(part).reshape(-1) for part in dense]
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return None
    if not flats:
        return None
    device = flats[0].device
    columns, rows = _signs(device)
    total = torch.zeros(2, dtype=torch.float64, device=device)
    for at, block in _blocks(flats):
        sums = (block * columns).sum(1)  # in float64, like `columns`
        total[0] += torch.dot(sums, rows[at : at + len(sums)])
        total[1] += torch.linalg.vector_norm(block, dtype=torch.float64) ** 2
    return total


class Described(NamedTuple):
    """One tensor or float of a worker: what tells the others whether theirs is the same, up to rounding. The numbers
    stay on their devices until they are `fetched`."""

    name: str
    tolerance: float  # relative; 0: must be equal
    digest: list[Any]
    sketch: Any  # the projection and the squared norm
    value: float | None  # of a Python float

    def fetched(self) -> Described:
        return self._replace(digest=[int(number) for number in self.digest], sketch=[float(n) for n in self.sketch])

    @property
    def norm(self) -> float:
        return math.sqrt(self.sketch[1])

    def is_like(self, other: Described) -> bool:
        """Whether both, fetched, describe the same numbers up to rounding."""
        gap = abs(self.sketch[0] - other.sketch[0])
        within = math.isfinite(gap) and gap <= self.tolerance * max(self.norm, other.norm)
        return self.digest == other.digest or bool(self.tolerance and within)


def described(name: str, value: torch.Tensor | float) -> Described:
    if isinstance(value, float):
        bits = torch.tensor(struct.unpack("<q", struct.pack("<d", value))[0], device="cpu")
        return Described(name, TOLERANCE[torch.float32], [bits], (value, value * value), value)
    about = sketch(value)
    if about is None:
        return Described(name, 0.0, digest([value]), (0.0, 0.0), None)
    return Described(name, TOLERANCE.get(value.dtype, COARSE), digest([value]), about, None)


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor's bits as flat tensors of 32-bit words, views if possible. Empty if the bits cannot be read: a tensor
    without memory (meta), or of a type without an integer view in torch."""
    try:
        return [_words(dense) for dense in _dense(tensor.detach()) if dense.numel()]
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return []


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that hold the numbers of a tensor of any layout."""
    if tensor.device.type == "meta":
        return []
    if tensor.is_nested:
        return [tensor.values()] if tensor.layout is torch.jagged else list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout is not torch.strided:
        return []
    if tensor.is_complex():
        return [torch.view_as_real(tensor.resolve_conj())]
    return [tensor.resolve_neg()]


def _copied_once(tensor: torch.Tensor) -> torch.Tensor:
    """An expanded tensor without its repeated elements."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and not stride:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _words(tensor: torch.Tensor) -> torch.Tensor:
    flat = _copied_once(tensor).reshape(-1)
    if flat.element_size() >= WORD:
        return flat.view(torch.int32)
    narrow = torch.int16 if flat.element_size() == 2 else torch.uint8
    return flat.view(narrow).to(torch.int32)


def _sum(device: torch.device, words: list[torch.Tensor]) -> torch.Tensor:
    columns, rows = _weights(device)
    total = torch.zeros((), dtype=torch.int64, device=device)
    for at, block in _blocks(words):
        sums = _products(block, columns).sum(1)
        total += sums.mul_(rows[at : at + len(sums)]).sum()
    return total


def _products(words: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The products as 64-bit numbers; on a CPU in a reused buffer, because new pages cost more than the sum."""
    if words.device.type != "cpu":
        return words * columns
    return _scratch()[: words.shape[0]].copy_(words).mul_(columns)


@cache
def _scratch() -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.empty(AT_ONCE["cpu"], ROW, dtype=torch.int64, device="cpu")


def _blocks(flats: list[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Blocks of rows, each with the number of its first row. Large tensors are views; small ones and the ends of large
    ones are concatenated, and the last row is padded with zeros: few operations for any shapes."""
    most = AT_ONCE.get(flats[0].device.type, MOST_AT_ONCE)
    at = 0
    for piece in _pieces(flats, most * ROW):
        block = piece.view(-1, ROW)
        yield at, block
        at = (at + len(block)) % (ROWS - most)


def _pieces(flats: list[torch.Tensor], most: int) -> Iterator[torch.Tensor]:
    small: list[torch.Tensor] = []
    filled = 0
    for flat in flats:
        for part in flat.split(most):
            if part.numel() == most:
                yield part
                continue
            if filled + part.numel() > most:
                yield _side_by_side(small, filled)
                small, filled = [], 0
            small.append(part)
            filled += part.numel()
    if small:
        yield _side_by_side(small, filled)


def _side_by_side(pieces: list[torch.Tensor], filled: int) -> torch.Tensor:
    if missing := -filled % ROW:
        pieces = [*pieces, pieces[0].new_zeros(missing)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the columns (odd, below 2^31) and of the rows (odd). The same on every worker and library version."""
    with torch.inference_mode(False):
        random = torch.from_numpy(_mixed(ROW + ROWS).view(np.int64)) | 1
        columns, rows = random[:ROW] & (2**31 - 1), random[ROW:]
        return columns.to(device), rows.to(device)


@cache
def _signs(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The same weights, scaled to numbers between -1 and 1."""
    columns, rows = _weights(device)
    with torch.inference_mode(False):
        return columns.double() / 2**30 - 1.0, rows.double() / 2**63


def _mixed(count: int) -> np.ndarray:
    """The first numbers of splitmix64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
