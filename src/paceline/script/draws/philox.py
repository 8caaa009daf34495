"""Dropout of own rows on a GPU, without drawing for the other rows.

torch's dropout kernel takes its numbers from Philox, a generator that is counted by position: the seed, the offset and
an element's index in the whole tensor give its number. A Triton kernel computes those of own rows. Bit for bit the
dropout of one process; where that cannot be had (no Triton, a group of four elements cut by the split, a layout other
than contiguous, a CUDA graph under capture, hooks on saved tensors), `dropout_rows` returns None, and the caller draws
the whole.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

from paceline.script.draws.rows import Piece
from paceline.torch_private import is_capturing, saved_tensor_hooks

BLOCK = 256  # threads of a block in torch's kernel
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NARROW = 2**31 - 4 * BLOCK  # elements whose indices fit into 32 bits
_ready: dict[Any, Any] = {}  # compiled kernels, by device and types


def dropout_rows(x: torch.Tensor, p: float, piece: Piece) -> torch.Tensor | None:
    """torch.dropout(whole, p, True) for own rows; advances the generator as that would."""
    count, size = x.numel(), x.element_size()
    before = piece.start * (count // max(piece.size, 1))  # elements of the whole tensor before own rows
    fits = piece.dim == 0 and x.is_contiguous() and x.dtype in DTYPES and before % 4 == 0
    vector = 16 // size
    if not fits or x.data_ptr() % 16 or is_capturing() or saved_tensor_hooks() is not None:
        return None
    whole = count // piece.size * piece.whole
    if whole % vector or before % vector or (kernel := _kernel()) is None:
        return None  # torch takes another kernel, without vectors
    index = x.device.index
    generator, blocks = torch.cuda.default_generators[index], _blocks(index)
    threads = min(blocks, -(-whole // BLOCK)) * BLOCK
    seed, offset = generator.initial_seed(), generator.get_offset()
    # Torch's own kernel goes first, for its node in the graph; what it drew is then written over, in the same stream.
    y, mask = torch.native_dropout(x, p, True)
    generator.set_offset(offset + ((whole - 1) // (threads * 4) + 1) * 4)
    numbers = (seed, offset // 4, before, count, threads)
    wide = whole > NARROW
    key = (index, x.dtype, wide, *(n.bit_length() // 32 for n in numbers))
    grid, given = (-(-count // (4 * BLOCK)), 1, 1), (x, y, mask, *numbers, 1 - p, 1 / (1 - p), vector, BLOCK, wide)
    with nullcontext() if index == torch.cuda.current_device() else torch.cuda.device(index):
        if key in _ready:
            _ready[key][grid](*given)  # Triton's own look at the arguments takes longer than all else here
        else:
            _ready[key] = kernel[grid](*given)
    return y


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
