"""What gradients live in on their way between the workers: a slot for each parameter, and buckets of slots."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NamedTuple

import torch

from paceline.comm.group import Pending
from paceline.comm.memory.reductions import Shared


@dataclass(eq=False, slots=True)
class Slot:
    """A parameter's place."""

    parameter: weakref.ref[torch.Tensor]
    name: str
    bucket: Bucket | None = None
    view: torch.Tensor | None = None
    address: int = 0  # of the view's memory when it was laid
    strides: tuple[int, ...] = ()  # of the parameter, then
    fired: bool = False  # its gradient came, in this backward
    filled: bool = False  # … and has been written into the bucket


@dataclass(eq=False, slots=True)
class Bucket:
    """Neighbours in the order of the first backward, of one dtype and device, in one flat tensor."""

    slots: list[Slot]
    flat: torch.Tensor
    shared: Shared | None = None  # its memory, where the workers share it
    key: int = 0
    shapes: tuple[torch.Size, ...] = ()
    uses: int = 0  # of its memory while nobody but us holds it
    missing: int = 0
    pending: Pending | None = None
    what: str = "gradients"  # for whoever asks what is waited for
    began: float = 0.0  # when its first gradient of this backward came
    ready: float = 0.0  # when it was sent off


class Tail(NamedTuple):
    """What one worker sent along at the end of a backward."""

    loss: float
    share: float  # of the batch
    riders: list[int]
