"""What a loader reads, where all of it can be known beforehand: the tensors of its dataset, and their order."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler, Subset, TensorDataset


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
