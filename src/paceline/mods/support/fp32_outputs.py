"""Outputs that `precision` gave back in float32, and what they were widened from.

The float32 copy is the script's, to do with as it likes. A compiled loss has no need of it: it reads the original, half
as large, and widens each number on the way, which is exact. Over many classes that saves most of a loss's memory
traffic. Here is kept which copy has which original, as long as the script holds the copy or a view of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from paceline.mods import catalog

LARGE = 1 << 24  # elements: below that, a kernel more or less is no matter
# Modes without CUDA graphs of the compiler's own: in the memory of one, an original would not outlive the next call.
MODES = ("compile=default", "compile=max-autotune-no-cudagraphs")

# The copy → its original, and how often each had been changed in place.
_originals: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def are_read(mods: Sequence[str]) -> bool:
    """Whether one of these mods reads originals. Without, none is to be kept: it takes memory."""
    return any(str(asked) in MODES for asked in catalog.parse(mods))


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a loss over it is worth a kernel of its own."""
    return tensor.is_cuda and tensor.numel() >= LARGE


def widen(narrow: torch.Tensor) -> torch.Tensor:
    """A copy in float32, whose original is known from now on."""
    wide = narrow.float()
    if is_large(wide) and type(narrow) is torch.Tensor and not narrow.is_inference():
        _originals[wide] = narrow, (wide._version, narrow._version)
    return wide


def original_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What can be read in the place of a copy, or of a view of all of it: the same numbers in the same shape, and the
    same gradients behind it. None where there is no such thing: it is no copy, either was changed since, or somebody
    looks at the gradient of the copy itself."""
    copy = tensor if tensor._base is None else tensor._base
    narrow, versions = _originals.get(copy, (None, None))
    if narrow is None or (copy._version, narrow._version) != versions or not _learns_alike(tensor, copy, narrow):
        return None
    if tensor is copy:
        return narrow
    # Contiguous, and with as many elements: it is the whole, in the order of memory.
    whole = tensor.numel() == copy.numel() and all(one.is_contiguous() for one in (tensor, copy, narrow))
    return narrow.view(tensor.shape) if whole else None


def _learns_alike(tensor: torch.Tensor, copy: torch.Tensor, narrow: torch.Tensor) -> bool:
    """Whether a gradient of the tensor goes to the original, and nowhere else on the way."""
    if not tensor.requires_grad or not narrow.requires_grad:
        return tensor.requires_grad == narrow.requires_grad
    if tensor.grad_fn is None or any(one.retains_grad or one._backward_hooks for one in (tensor, copy)):
        return False
    # One view at most: a tensor between two of them, and its hooks, would be out of sight.
    return tensor is copy or (
        tensor.grad_fn.name() == "ViewBackward0" and tensor.grad_fn.next_functions == ((copy.grad_fn, 0),)
    )
