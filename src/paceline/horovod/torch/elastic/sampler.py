"""A distributed sampler that knows which samples of the epoch were processed, and deals out the others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from paceline.horovod.common import basics


class ElasticSampler(Sampler[int]):
    """Like torch's DistributedSampler. Call `record_batch` after each batch, and `set_epoch` at the end of an epoch. As
    a part of a `TorchState` it goes on with the samples that are left, whatever the number of workers."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in its own order, with all samples."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals the samples that are left out to the present ranks."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        # Every rank makes the same number of batches: some samples may come twice.
        missing = self.total_size - len(self.remaining_indices)
        every = self.remaining_indices + (self.remaining_indices * missing)[:missing]
        return iter(every[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
