"""Maps the float32 outputs of the mod `precision` to their half-precision originals.

The script gets the float32 copy. A compiled loss reads the original instead, which is half as large, and converts each
number on the fly, which is exact. With many classes that saves most of a loss's memory traffic. An entry lives as long
as the script holds the copy or a view of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from paceline.mods import catalog

LARGE = 1 << 24  # elements: for smaller tensors the saving is negligible
# Compile modes without CUDA graphs: the next call overwrites an original in a graph's memory.
MODES = ("compile=default", "compile=max-autotune-no-cudagraphs")

# Copy → its original, and the version counters of both (in-place changes).
_originals: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def are_read(mods: Sequence[str]) -> bool:
    """Whether one of these mods reads originals. If not, none is kept, because an original takes memory."""
    return any(str(asked) in MODES for asked in catalog.parse(mods))


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a loss over the tensor is worth compiling."""
    return tensor.is_cuda and tensor.numel() >= LARGE


def widen(narrow: torch.Tensor) -> torch.Tensor:
    """A float32 copy; `original_of` then finds its original."""
    wide = narrow.float()
    if is_large(wide) and type(narrow) is torch.Tensor and not narrow.is_inference():
        _originals[wide] = narrow, (wide._version, narrow._version)
    return wide


def original_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The original of a copy, or of a view of the whole copy: the same numbers and shape, and the same gradients. None
    if the tensor is not a copy, if the copy or the original was changed since, or if the script reads the gradient of
    the copy itself."""
    copy = tensor if tensor._base is None else tensor._base
    narrow, versions = _originals.get(copy, (None, None))
    if narrow is None or (copy._version, narrow._version) != versions or not _learns_alike(tensor, copy, narrow):
        return None
    if tensor is copy:
        return narrow
    # Contiguous, with the same number of elements: a view of the whole copy, in memory order.
    whole = tensor.numel() == copy.numel() and all(one.is_contiguous() for one in (tensor, copy, narrow))
    return narrow.view(tensor.shape) if whole else None


def _learns_alike(tensor: torch.Tensor, copy: torch.Tensor, narrow: torch.Tensor) -> bool:
    """Whether a gradient of the tensor reaches the original, and no other tensor or hook on the way."""
    if not tensor.requires_grad or not narrow.requires_grad:
        return tensor.requires_grad == narrow.requires_grad
    if tensor.grad_fn is None or any(one.retains_grad or one._backward_hooks for one in (tensor, copy)):
        return False
    # One view at most: the hooks of a tensor between two views could not be checked.
    return tensor is copy or (
        tensor.grad_fn.name() == "ViewBackward0" and tensor.grad_fn.next_functions == ((copy.grad_fn, 0),)
    )
