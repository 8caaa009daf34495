"""The data structures of gradient communication: a slot per parameter, and buckets of slots."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import NamedTuple

import torch

from paceline.comm.channels import Pending
from paceline.comm.memory.reductions import Shared


@dataclass(eq=False, slots=True)
class BucketSlot:
    """The place of one parameter's gradient in a bucket."""

    parameter: weakref.ref[torch.Tensor]
    name: str
    bucket: Bucket | None = None
    view: torch.Tensor | None = None
    address: int = 0  # data pointer of the view when it was created
    strides: tuple[int, ...] = ()  # strides of the parameter when the view was created
    fired: bool = False  # the gradient hook has run in this backward
    filled: bool = False  # the gradient has been written into the bucket


@dataclass(eq=False, slots=True)
class Bucket:
    """Gradients of one dtype and device in one flat tensor, in the order of the first backward."""

    slots: list[BucketSlot]
    flat: torch.Tensor
    shared: Shared | None = None  # the memory of `flat`, if it is shared between workers
    key: int = 0
    shapes: tuple[torch.Size, ...] = ()
    uses: int = 0  # storage references held by Paceline: more mean that the script also holds the memory
    missing: int = 0  # gradients not yet written in this backward
    pending: Pending | None = None
    what: str = "gradients"  # shown in messages about a wait for this bucket
    began: float = 0.0  # time of the first gradient of this backward
    ready: float = 0.0  # time at which its all-reduce started


class BucketTail(NamedTuple):
    """The small message that one worker sends at the end of a backward."""

    loss: float
    share: float  # this worker's fraction of the batch
    riders: list[int]  # integers of the caller
