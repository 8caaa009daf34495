"""Resident: a TensorDataset is copied to the device once, and each batch is one gather.

Changes: only where batches come from; the samples and their order stay the same. Applies to a `TensorDataset` (or a
`Subset` of one) in a DataLoader with the default collate function. With one worker and a GPU, the tensors go to the GPU
if they fit into half of its free memory, else they stay on the host. Can break: code that changes the dataset's tensors
while it trains on a GPU, or that expects batches on the host.

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

SHARE = 0.5  # most of a GPU's free memory that the dataset may take


class ResidentBatch(tuple[torch.Tensor, ...]):
    """Tensors that are already collated."""


class Mod:
    """Changes a loader before its first iteration: its dataset returns a whole batch at a time, and its sampler returns
    a batch's indices as one tensor. Single indices take longer than a small step."""

    def __init__(self, value: str) -> None:
        self._kept = False
        self._whole: weakref.WeakKeyDictionary[Any, torch.device] = weakref.WeakKeyDictionary()  # sampler → device

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

        def give(indices: Any) -> ResidentBatch:
            index = torch.as_tensor(indices, device="cpu").to(device)
            if inner is not None:
                index = inner[index]
            return ResidentBatch(tensor.index_select(0, index) for tensor in tensors)

        self._kept = True
        loader.dataset.__getitems__ = give
        loader.collate_fn = lambda batch: list(batch) if isinstance(batch, ResidentBatch) else default_collate(batch)
        if self.stage.group.world == 1 and _is_plain(loader.sampler):
            self._whole[loader.sampler] = device

    def idle(self) -> str:
        if self._kept:
            return ""
        return "no DataLoader of the script has a TensorDataset, torch's collate function and no processes of its own."

    def _device(self, tensors: tuple[torch.Tensor, ...]) -> torch.device:
        """The device of the tensors. Several workers collate a batch on the host."""
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
                # At its end, RandomSampler draws one more permutation of which it uses no element.
                torch.randperm(len(order), generator=generator, device="cpu")

        return __iter__


def _is_plain(sampler: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _order(sampler: Any) -> torch.Tensor:
    """All indices in the plain sampler's order, drawn with the same random numbers."""
    count = len(sampler.data_source)
    if type(sampler) is SequentialSampler:
        return torch.arange(count, device="cpu")
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_().item()))
    return torch.randperm(count, generator=generator, device="cpu")


def _tensors(dataset: Any) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None] | None:
    """A dataset's tensors and, for a Subset, its indices. None for any other dataset."""
    if type(dataset) is TensorDataset:
        return dataset.tensors, None
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return dataset.dataset.tensors, torch.as_tensor(list(dataset.indices), device="cpu")
    return None
