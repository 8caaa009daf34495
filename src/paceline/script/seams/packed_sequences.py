"""Sequences that a sliced call unpacks are as long as the longest of the batch, which another worker may hold.

`pad_packed_sequence` pads to the longest sequence that it is given, and outputs of slices must fit together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.script.patches import patch
from paceline.script.seams.stage import Stage
from paceline.torch_private import bindings

WHAT = "the length of the longest sequence"


def find(stage: Stage) -> Callable[[], None]:
    """Patches what `pad_packed_sequence` calls; returns a function that removes the patch. Only with several workers,
    which all make each call."""
    plain = bindings._pad_packed_sequence

    def pad_packed_sequence(data: Any, sizes: Any, batch_first: bool, padding: float, length: int) -> Any:
        split = None if torch.compiler.is_compiling() else stage.views.split_of_call
        if split is not None and split.batch and not stage.is_elsewhere():
            length = max(split.group.gather_objects(length, WHAT))
        return plain(data, sizes, batch_first, padding, length)

    return patch(bindings, "_pad_packed_sequence", pad_packed_sequence)
