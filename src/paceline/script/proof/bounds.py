"""Indices out of range in a dry run on a GPU: an exception, as on a CPU.

The proof also tries ways to cut the arguments that are wrong, and then a module may index past the end of a tensor (the
targets of a contrastive loss count rows that were cut away). On a CPU that raises. A CUDA kernel would end the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from paceline.torch_private import DispatchMode

Indices = Iterator[tuple[torch.Tensor, int, bool]]  # indices, their bound, and whether they may count from the end


def on_gpus() -> AbstractContextManager[object]:
    """For a dry run: checks indices if a GPU is in use."""
    return CheckedIndices() if torch.cuda.is_initialized() else contextlib.nullcontext()


class CheckedIndices(DispatchMode):
    """Raises an IndexError for an index out of range, before the kernel runs. Waits for the device at each check."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indices_of = INDEXING.get(func.overloadpacket.__name__.rstrip("_"))
        for index, size, from_end in indices_of(*args) if indices_of else ():
            if index.numel() and not (index.min() >= (-size if from_end else 0) and index.max() < size):
                raise IndexError(f"index out of range: {func} with indices up to {index.max()} for size {size}")
        return func(*args, **(kwargs or {}))


def require_sizes(name: str, args: Any) -> None:
    """IndexError for arguments of which a kernel of torch would read or write beyond their memory, on CPUs, too: sizes
    that fit to the whole batch need not fit to some of its rows."""
    if name == "segment_reduce":
        raise IndexError("segment_reduce reads as many rows as another argument says")
    if "batch_norm" in name and "backward" not in name:
        x, *others = [value for value in args if isinstance(value, torch.Tensor)]
        if any(t.dim() != 1 or t.shape[0] != x.shape[1 if x.dim() > 1 else 0] for t in others):
            raise IndexError(f"{name} with statistics of other sizes than its input has channels")


def _of_loss(scores: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: int, *_: Any) -> Indices:
    yield target[target != ignored], scores.shape[min(1, scores.dim() - 1)], False


def _of_table(table: torch.Tensor, index: torch.Tensor, *_: Any) -> Indices:
    yield index, table.shape[0], False


def _of_bags(table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, *_: Any) -> Indices:
    yield from _of_table(table, index)
    for place in (offsets, offsets.diff()):  # a bag begins where the one before it has ended
        yield place, len(index) + 1, False


def _along(tensor: torch.Tensor, dim: int, index: torch.Tensor, *_: Any) -> Indices:
    yield index, tensor.shape[dim] if tensor.dim() else 1, False


def _of_brackets(tensor: torch.Tensor, indices: list[torch.Tensor | None], *_: Any) -> Indices:
    dim = 0
    for index in indices:
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):  # a mask, of one dimension or several; torch compares its shape
            dim += index.dim()
        else:
            yield index, tensor.shape[dim], True
            dim += 1


INDEXING: dict[str, Callable[..., Indices]] = {
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _of_loss),
    "embedding": _of_table,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _of_bags),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _along),
    **dict.fromkeys(("index_select", "index_add", "index_copy", "index_fill", "index_reduce"), _along),
    **dict.fromkeys(("index", "index_put", "_unsafe_index", "_index_put_impl"), _of_brackets),
}
