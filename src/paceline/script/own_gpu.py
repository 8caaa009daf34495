"""Shows the script one GPU: its worker's own.

The launcher lists a worker's own GPU first in CUDA_VISIBLE_DEVICES, and the other GPUs after it, because NCCL needs
them for direct paths. A script that counted all of them would use them: Hugging Face's Trainer would wrap the model in
DataParallel, Lightning would start processes of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def show() -> Callable[[], None]:
    """From now on the script counts one GPU at most. Returns a function that removes the patches."""
    owners: list[Any] = [torch.cuda, torch.accelerator]
    plain = [(owner, owner.device_count) for owner in owners]
    for owner, count in plain:
        owner.device_count = _at_most_one(count)

    def undo() -> None:
        for owner, count in plain:
            owner.device_count = count

    return undo


def _at_most_one(plain: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(plain)
    def device_count() -> int:
        return min(1, plain())

    return device_count
