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

from paceline.mods import prospects
from paceline.script.seams.stage import Stage

SHARE = 0.5  # most of a GPU's free memory that the dataset may take


Gather = Callable[[torch.Tensor], "ResidentBatch"]


class ResidentBatch(tuple[torch.Tensor, ...]):
    """Tensors that are already collated."""


class Mod:
    """Changes a loader before its first iteration: its dataset returns a whole batch at a time, and its sampler returns
    a batch's indices as one tensor. Single indices take longer than a small step."""

    def __init__(self, value: str) -> None:
        self._kept = False
        # Sampler → device, and what gathers a batch there.
        self._whole: weakref.WeakKeyDictionary[Any, tuple[torch.device, Gather]] = weakref.WeakKeyDictionary()
        self._following: tuple[Gather, torch.Tensor] | None = None  # the batch after the one just handed out
        self._ahead: tuple[torch.Tensor, ResidentBatch] | None = None  # its indices, and itself

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        BatchSampler.__iter__ = self._as_tensors(BatchSampler.__iter__)  # type: ignore[method-assign]

    def on_loader(self, loader: Any) -> None:
        found = tensors_of(loader.dataset)
        if found is None or loader.collate_fn is not default_collate or loader.num_workers:
            return
        tensors, inner = found
        device = self._device(tensors)
        tensors = tuple(tensor.to(device) for tensor in tensors)
        inner = None if inner is None else inner.to(device)

        def gather(index: torch.Tensor) -> ResidentBatch:
            if inner is not None:
                index = inner[index]
            return ResidentBatch(tensor.index_select(0, index) for tensor in tensors)

        def give(indices: Any) -> ResidentBatch:
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead[0] is indices:
                return ahead[1]
            return gather(torch.as_tensor(indices, device="cpu").to(device))

        self._kept = True
        loader.dataset.__getitems__ = give
        loader.collate_fn = lambda batch: list(batch) if isinstance(batch, ResidentBatch) else default_collate(batch)
        if self.stage.group.world == 1 and is_plain(loader.sampler):
            self._whole[loader.sampler] = device, gather

    def after_step(self, optimizer: Any) -> None:
        """Gathers the next batch while the GPU still computes the step, and not when the script asks for it."""
        following, self._following = self._following, None
        if following is not None and self._ahead is None:
            gather, index = following
            self._ahead = index, gather(index)

    def idle(self) -> str:
        if self._kept:
            return ""
        return prospects.NO_TENSORS

    def _device(self, tensors: tuple[torch.Tensor, ...]) -> torch.device:
        """The device of the tensors. Several workers collate a batch on the host."""
        if self.stage.group.world > 1 or not torch.cuda.is_available():
            return torch.device("cpu")
        free, _ = torch.cuda.mem_get_info()
        return torch.device("cuda" if sum(tensor.nbytes for tensor in tensors) < SHARE * free else "cpu")

    def _as_tensors(self, plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def __iter__(batches: BatchSampler) -> Iterator[Any]:
            device, gather = self._whole.get(batches.sampler, (None, None))
            if device is None or gather is None:
                yield from plain(batches)
                return
            order = order_of(batches.sampler).to(device)
            whole = len(order) - len(order) % batches.batch_size if batches.drop_last else len(order)
            parts = order[:whole].split(batches.batch_size) if whole else ()
            for number, part in enumerate(parts, 1):
                if device.type == "cuda" and number < len(parts):
                    self._following = gather, parts[number]
                yield part
            if (generator := getattr(batches.sampler, "generator", None)) is not None:
                # At its end, RandomSampler draws one more permutation of which it uses no element.
                torch.randperm(len(order), generator=generator, device="cpu")

        return __iter__


# -- what a loader reads ----------------------------------------------------------------------------------------------


def is_plain(sampler: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def order_of(sampler: Any) -> torch.Tensor:
    """All indices in the plain sampler's order, drawn with the same random numbers."""
    count = len(sampler.data_source)
    if type(sampler) is SequentialSampler:
        return torch.arange(count, device="cpu")
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_().item()))
    return torch.randperm(count, generator=generator, device="cpu")


def tensors_of(dataset: Any) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None] | None:
    """A dataset's tensors and, for a Subset, its indices. None for any other dataset."""
    if type(dataset) is TensorDataset:
        return dataset.tensors, None
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return dataset.dataset.tensors, torch.as_tensor(list(dataset.indices), device="cpu")
    return None
