"""Dropout of own rows on a GPU, without drawing for the other rows.

torch's dropout kernel takes its numbers from Philox, a generator that is counted by position: the seed, the offset and
an element's index in the whole tensor give its number. A Triton kernel computes those of own rows. Bit for bit the
dropout of one process; where that cannot be had (no Triton, a group of four elements cut by the split, a layout other
than contiguous, a CUDA graph under capture, hooks on saved tensors), `dropout_rows` returns None, and the caller draws
the whole.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from paceline.script.draws.rows import Piece
from paceline.torch_private import is_capturing, saved_tensor_hooks

BLOCK = 256  # threads of a block in torch's kernel
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NARROW = 2**31 - 4 * BLOCK  # elements whose indices fit into 32 bits
_ready: dict[Any, Any] = {}  # compiled kernels, by types


class Layout(NamedTuple):
    """Of a draw: what does not change from call to call."""

    before: int  # elements of the whole tensor before own rows
    threads: int  # of torch's kernel
    later: int  # how far torch's kernel moves the generator's offset
    vector: int
    wide: bool
    grid: tuple[int, int, int]
    types: tuple[Any, ...]  # what Triton compiles a kernel for


def dropout_rows(x: torch.Tensor, p: float, piece: Piece) -> torch.Tensor | None:
    """torch.dropout(whole, p, True) for own rows; advances the generator as that would."""
    if piece.dim or not x.is_contiguous() or x.data_ptr() % 16 or is_capturing() or saved_tensor_hooks() is not None:
        return None
    index, count = x.get_device(), x.numel()
    layout, kernel = _layout(index, x.dtype, count, piece.start, piece.size, piece.whole), _kernel()
    if layout is None or kernel is None:
        return None
    generator = torch.cuda.default_generators[index]
    seed, offset = generator.initial_seed(), generator.get_offset()
    # Torch's own kernel goes first, for its node in the graph; what it drew is then written over, in the same stream.
    y, mask = torch.native_dropout(x, p, True)
    generator.set_offset(offset + layout.later)
    numbers = (seed, offset // 4, layout.before, count, layout.threads)
    key = (layout.types, seed.bit_length() // 32, numbers[1].bit_length() // 32)
    given = (x, y, mask, *numbers, 1 - p, 1 / (1 - p), layout.vector, BLOCK, layout.wide)
    with nullcontext() if index == torch.cuda.current_device() else torch.cuda.device(index):
        if key in _ready:
            _ready[key][layout.grid](*given)  # Triton's own look at the arguments takes longer than all else here
        else:
            _ready[key] = kernel[layout.grid](*given)
    return y


@lru_cache(1024)
def _layout(index: int, dtype: torch.dtype, count: int, start: int, rows: int, batch: int) -> Layout | None:
    """None where torch takes another kernel, without vectors."""
    if dtype not in DTYPES:
        return None
    each, vector = count // max(rows, 1), 16 // dtype.itemsize
    before, whole = start * each, batch * each
    if whole % vector or before % vector:
        return None
    threads = min(_blocks(index), -(-whole // BLOCK)) * BLOCK
    later = ((whole - 1) // (threads * 4) + 1) * 4
    types = (index, dtype, whole > NARROW, *(n.bit_length() // 32 for n in (before, count, threads)))
    return Layout(before, threads, later, vector, whole > NARROW, (-(-count // (4 * BLOCK)), 1, 1), types)


@cache
def _blocks(index: int) -> int:
    """The most blocks with which torch starts its kernel."""
    props = torch.cuda.get_device_properties(index)
    return int(props.multi_processor_count * (props.max_threads_per_multi_processor // BLOCK))


@cache
def _kernel() -> Any:
    """The Triton kernel; None without Triton."""
    try:
        from paceline.script.draws.philox_kernels import rows_kernel
    except ImportError:
        return None
    return rows_kernel
