"""Resident: a dataset of tensors is put on the device once, and a batch is one gather.

Changes: nothing but where batches come from: the same samples in the same order. Applies to a `TensorDataset` (or a
`Subset` of one) that the DataLoader puts together by its own default; with one worker on a GPU it lies there if half of
the free memory holds it, else it stays on the host. Can break: code that changes the dataset's tensors while it trains
on a GPU, or that expects batches on the host.

By hand:

    x, y = x.to(device), y.to(device)
    for index in torch.randperm(len(x)).split(batch_size):
        images, labels = x[index], y[index]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, Subset, TensorDataset, default_collate

from paceline.script.seams.stage import Stage

SHARE = 0.5  # of a GPU's free memory that may be taken


class Batch(tuple[torch.Tensor, ...]):
    """Tensors that are a batch already."""


class Mod:
    """Teaches a loader's dataset to give a whole batch at a time, before it is first iterated, and its sampler to give
    a batch's indices as one tensor: one by one, they take longer than a small step."""

    def __init__(self, value: str) -> None:
        self._whole: weakref.WeakKeyDictionary[Any, torch.device] = weakref.WeakKeyDictionary()  # sampler → where to

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        BatchSampler.__iter__ = self._as_tensors(BatchSampler.__iter__)  # type: ignore[method-assign]

    def on_loader(self, loader: Any) -> None:
        found = _tensors(loader.dataset)
        if found is None or loader.collate_fn is not default_collate or loader.num_workers:
            return
        tensors, inner = found
        device = self._device(tensors)
        tensors = tuple(tensor.to(device) for tensor in tensors)
        inner = None if inner is None else inner.to(device)

        def give(indices: Any) -> Batch:
            index = torch.as_tensor(indices).to(device)
            if inner is not None:
                index = inner[index]
            return Batch(tensor.index_select(0, index) for tensor in tensors)

        loader.dataset.__getitems__ = give
        loader.collate_fn = lambda batch: list(batch) if isinstance(batch, Batch) else default_collate(batch)
        if self.stage.group.world == 1 and _is_plain(loader.sampler):
            self._whole[loader.sampler] = device

    def _device(self, tensors: tuple[torch.Tensor, ...]) -> torch.device:
        """Several workers put a batch together on the host."""
        if self.stage.group.world > 1 or not torch.cuda.is_available():
            return torch.device("cpu")
        free, _ = torch.cuda.mem_get_info()
        return torch.device("cuda" if sum(tensor.nbytes for tensor in tensors) < SHARE * free else "cpu")

    def _as_tensors(self, plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def __iter__(batches: BatchSampler) -> Iterator[Any]:
            device = self._whole.get(batches.sampler)
            if device is None:
                yield from plain(batches)
                return
            order = _order(batches.sampler).to(device)
            whole = len(order) - len(order) % batches.batch_size if batches.drop_last else len(order)
            yield from order[:whole].split(batches.batch_size) if whole else ()
            if (generator := getattr(batches.sampler, "generator", None)) is not None:
                torch.randperm(len(order), generator=generator)  # as the sampler does at its end, for a part of none

        return __iter__


def _is_plain(sampler: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _order(sampler: Any) -> torch.Tensor:
    """All indices that a plain sampler would give, with the random numbers that it would draw."""
    count = len(sampler.data_source)
    if type(sampler) is SequentialSampler:
        return torch.arange(count)
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    return torch.randperm(count, generator=generator)


def _tensors(dataset: Any) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None] | None:
    """A dataset's tensors, and the samples that are taken of them where it is a part of another."""
    if type(dataset) is TensorDataset:
        return dataset.tensors, None
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return dataset.dataset.tensors, torch.as_tensor(list(dataset.indices))
    return None
