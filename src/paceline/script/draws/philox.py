"""Dropout of own rows on a GPU, without drawing for the other rows.

torch's dropout kernel takes its numbers from Philox, a generator that is counted by position: the seed, the offset and
an element's index in the whole tensor give its number. A Triton kernel computes those of own rows. Bit for bit the
dropout of one process; where that cannot be had (no Triton, a group of four elements cut by the split, a layout other
than contiguous, a CUDA graph under capture), `dropout_rows` returns None, and the caller draws the whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.autograd import Function

from paceline.script.draws.rows import Piece
from paceline.torch_private import is_capturing

BLOCK = 256  # threads of a block in torch's kernel
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def dropout_rows(x: torch.Tensor, p: float, piece: Piece) -> torch.Tensor | None:
    """torch.dropout(whole, p, True) for own rows; advances the generator as that would."""
    before = piece.start * (x.numel() // max(piece.size, 1))  # elements of the whole tensor before own rows
    fits = piece.dim == 0 and x.is_contiguous() and x.dtype in DTYPES and before % 4 == 0
    vector = 16 // x.element_size()
    if not fits or x.data_ptr() % 16 or is_capturing():
        return None
    whole = x.numel() // piece.size * piece.whole
    if whole % vector or before % vector or (kernel := _kernel()) is None:
        return None  # torch takes another kernel, without vectors
    return _Rows.apply(x, p, before, whole, kernel)


class _Rows(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float, before: int, whole: int, kernel: Any) -> torch.Tensor:
        index = x.device.index if x.device.index is not None else torch.cuda.current_device()
        generator = torch.cuda.default_generators[index]
        props = torch.cuda.get_device_properties(index)
        blocks = props.multi_processor_count * (props.max_threads_per_multi_processor // BLOCK)
        threads = min(blocks, -(-whole // BLOCK)) * BLOCK
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + ((whole - 1) // (threads * 4) + 1) * 4)
        y, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        count = x.numel()
        with torch.cuda.device(index):
            kernel[(-(-count // (4 * BLOCK)),)](
                *(x, y, mask, seed, offset // 4, before, count, threads, 1 - p, 1 / (1 - p)),
                VEC=16 // x.element_size(),
                BLOCK=BLOCK,
            )
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - p)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(grad, mask, ctx.scale), None, None, None, None


@cache
def _kernel() -> Any:
    """The Triton kernel; None without Triton."""
    try:
        from paceline.script.draws.philox_kernels import rows_kernel
    except ImportError:
        return None
    return rows_kernel
