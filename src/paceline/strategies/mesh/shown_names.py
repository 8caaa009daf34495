"""The names that `print` shows of the gradient functions of torch's own results."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


def name_of(probe: Callable[[], torch.Tensor]) -> str:
    """The name of the gradient function of what `probe` computes, on tiny tensors.

    It computes in a thread of its own, in which no hook on saved tensors (activation checkpointing), no autocast, no
    mode and no inference of the script applies.
    """
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(type(probe().grad_fn).__name__))
    thread.start()
    thread.join()
    return found[0] if found else "Function"
