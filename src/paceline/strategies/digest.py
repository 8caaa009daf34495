"""A digest of tensors: one 64-bit number for all of their bits, computed on the device that they lie on.

The bits are read as 32-bit words in rows of `ROW`. A word is multiplied by a fixed odd number of its column, the sum of
a row by one of its row, and everything is added modulo 2^64:

    digest = Σ_rows v_row · Σ_columns w_column · word

A single word that differs always changes the digest: |w · difference| < 2^63 is never 0, and v is odd. Several words
that differ, in whatever pattern (swapped rows, flipped signs), leave it unchanged with a probability of about 2^-31. No
floating-point number is added up, so nothing is rounded away. Nothing here waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import torch

ROW = 4096  # words
ROWS = 1 << 16  # row weights; a longer stream begins again
AT_ONCE = {"cpu": 16}  # rows in one operation: what a core's cache holds
MOST_AT_ONCE = 1024  # … elsewhere: 16 MB of words
WORD = 4  # bytes


@torch.no_grad()
def digest(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """One int64 number a device, in the order in which the devices come. Tensors without readable bits add nothing."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        for part in parts(tensor):
            by_device.setdefault(part.device, []).append(part)
    return [_sum(device, words) for device, words in by_device.items()]


@torch.no_grad()
def sketch(tensor: torch.Tensor) -> torch.Tensor | None:
    """A projection of a floating-point tensor onto fixed random numbers, and the square of its norm: two such pairs
    tell a difference of rounding from a real one. None for other types."""
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
    columns, rows = _weights(device)
    total = torch.zeros(2, dtype=torch.float64, device=device)
    at, most = 0, AT_ONCE.get(device.type, MOST_AT_ONCE)
    signs = columns.double() / 2**30 - 1.0
    for piece in _pieces(flats, most * ROW):
        for part in (
            piece[: piece.numel() // ROW * ROW].view(-1, ROW),
            piece[piece.numel() // ROW * ROW :].view(1, -1),
        ):
            if part.numel():
                wide = part.to(torch.float64)
                sums = (wide * signs[: part.shape[1]]).sum(1)
                total[0] += (sums * (rows[at : at + part.shape[0]].double() / 2**63)).sum()
                total[1] += (wide * wide).sum()
                at += part.shape[0]
        at %= ROWS - most - 1
    return total


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor's bits as flat tensors of 32-bit words, views where that is possible; none where they cannot be read:
    a tensor without memory (meta), or of a type that torch has no integer view of."""
    try:
        return [_words(dense) for dense in _dense(tensor.detach()) if dense.numel()]
    except (RuntimeError, NotImplementedError, TypeError, AttributeError):
        return []


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor of any layout keeps its numbers in."""
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
    """An expanded tensor without its repetitions."""
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
    most = AT_ONCE.get(device.type, MOST_AT_ONCE)
    total = torch.zeros((), dtype=torch.int64, device=device)
    at = 0
    for piece in _pieces(words, most * ROW):
        whole = piece.numel() // ROW
        if whole:
            sums = _widened(piece[: whole * ROW].view(whole, ROW)).mul_(columns).sum(1)
            total += sums.mul_(rows[at : at + whole]).sum()
        if rest := piece.numel() - whole * ROW:
            last = piece[whole * ROW :].to(torch.int64).mul_(columns[:rest]).sum()
            total += last.mul_(rows[at + whole])
        at = (at + whole + 1) % (ROWS - most)
    return total


def _widened(words: torch.Tensor) -> torch.Tensor:
    """The words as 64-bit numbers; on a CPU in memory that is there already, since new pages cost more than the sum."""
    if words.device.type != "cpu":
        return words.to(torch.int64)
    return _scratch()[: words.shape[0]].copy_(words)


@cache
def _scratch() -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.empty(AT_ONCE["cpu"], ROW, dtype=torch.int64, device="cpu")


def _pieces(words: list[torch.Tensor], most: int) -> Iterator[torch.Tensor]:
    """The words one after the other, in pieces of at most so many: small tensors side by side, large ones in parts."""
    small: list[torch.Tensor] = []
    filled = 0
    for flat in words:
        for part in flat.split(most):
            if filled + part.numel() > most:
                yield _beside(small)
                small, filled = [], 0
            small.append(part)
            filled += part.numel()
    if small:
        yield _beside(small)


def _beside(pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Of columns, odd and below 2^31, and of rows, odd. The same on every worker, whatever its libraries."""
    with torch.inference_mode(False):
        random = torch.from_numpy(_mixed(ROW + ROWS).view(np.int64)) | 1
        columns, rows = random[:ROW] & (2**31 - 1), random[ROW:]
        return columns.to(device), rows.to(device)


def _mixed(count: int) -> np.ndarray:
    """The first numbers of splitmix64."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
