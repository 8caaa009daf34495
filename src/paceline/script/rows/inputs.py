"""A loader's batch as sharded tensors, so that each worker augments its own rows only.

Every worker has the whole batch, so nothing is lost if a script does with a tensor what own rows do not suffice for:
the tensor becomes plain without a message, and that batch is augmented whole, as is a batch that is changed in place.
What the script computes of own rows has no such source, and would have to be gathered. Therefore the first batches
tell whether it pays: a tensor stays sharded in later batches if rows that were computed of it reach a model's call,
and are (almost) never gathered. Every worker takes the same way, because it runs the same script.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from paceline.comm.group import Group
from paceline.script.rows.crossings import Split, Usage
from paceline.script.rows.layout import Layout
from paceline.script.rows.tensor import Rows

TRIED = 3  # batches, after which rows must have been computed
SELDOM = 8  # one gather in so many batches (pictures for a log), and one more, are no reason to stop
LARGE = 16  # times what an output must have to stay sharded: a function of less costs no more than its bookkeeping


class Inputs:
    """Shards the batches that a worker's loaders hand out. `least`: bytes that an output must have to stay sharded."""

    def __init__(self, group: Group, least: int) -> None:
        self._group, self._least = group, least * LARGE

    def sharded(self, batch: Any, usages: dict[Hashable, Usage]) -> Any:
        """The batch with sharded tensors where that pays. `usages`: of the same loader's batches before."""
        return self._sharded(batch, usages, (), {})

    def _sharded(self, batch: Any, usages: dict[Hashable, Usage], place: Hashable, made: dict[int, Any]) -> Any:
        """Only containers whose copy is like them are copied. `made`: one for a tensor that is there twice."""
        if type(batch) in (list, tuple):
            return type(batch)([self._sharded(one, usages, (place, i), made) for i, one in enumerate(batch)])
        if type(batch) is dict:
            return {key: self._sharded(one, usages, (place, key), made) for key, one in batch.items()}
        if type(batch) is not torch.Tensor or not self._may_be_sharded(batch):
            return batch
        if id(batch) not in made:
            usage = usages.setdefault(place, Usage())
            made[id(batch)] = self._own_rows(batch, usage) if _pays(usage) else batch
        return made[id(batch)]

    def _own_rows(self, whole: torch.Tensor, usage: Usage) -> Rows:
        usage.batches += 1
        split = Split.of(self._group, whole.shape[0])
        return Rows.of_source(whole.detach(), Layout(Split(split.group, split.sizes, input=usage), 0))

    def _may_be_sharded(self, tensor: torch.Tensor) -> bool:
        """Of integers only bytes, which are pictures: larger ones are tokens and labels."""
        return (
            tensor.dim() > 1
            and tensor.shape[0] >= self._group.world
            and (tensor.is_floating_point() or tensor.dtype is torch.uint8)
            and tensor.numel() * tensor.element_size() >= self._least
            and tensor.layout is torch.strided
            and not (tensor.requires_grad or tensor.is_inference() or tensor.is_nested)
        )


def _pays(usage: Usage) -> bool:
    return usage.gathered <= 1 + usage.batches // SELDOM and (usage.batches < TRIED or usage.computed > 0)


def count_computed(leaves: list[Any]) -> None:
    """Notes what of the arguments of a model's call was computed of a loader's batch."""
    for leaf in leaves:
        if isinstance(leaf, Rows) and leaf.source is None and leaf.rows.split.input is not None:
            leaf.rows.split.input.computed += 1
