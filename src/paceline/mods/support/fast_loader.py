"""The DataLoader iterator of the mod `loader=fast`: the same batches, loaded by paceline.data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from paceline.data.planning.stages import How
from paceline.data.torch_loader import Feeder, can_feed
from paceline.torch_private import LoaderIteratorInProcess, pinning


def feeder_for(loader: DataLoader[Any]) -> Feeder | None:
    """The feeder for all epochs of a loader; None for a loader that stays unchanged."""
    return Feeder(loader, How()) if can_feed(loader) and not loader.num_workers else None


class FedIter(LoaderIteratorInProcess):
    """Draws the same random numbers and takes the same indices from the sampler as torch's iterator; only the loading
    of samples differs."""

    def __init__(self, loader: DataLoader[Any], feeder: Feeder) -> None:
        super().__init__(loader)
        try:
            count: int | None = len(self._index_sampler)
        except TypeError:
            count = None
        self._batches = feeder.batches(self._indices(), count)

    def _indices(self) -> Iterator[Any]:
        while True:
            try:
                index = self._next_index()
            except StopIteration:
                return
            yield index

    def _next_data(self) -> Any:
        batch = next(self._batches)
        return pinning.pin_memory(batch) if self._pin_memory else batch
