"""What the mod `loader=fast` puts in the place of a DataLoader's iterator: the same batches, fed by paceline.data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from paceline.data.planning.stages import How
from paceline.data.torch_loader import Feeder, can_feed


def feeder_for(loader: DataLoader[Any]) -> Feeder | None:
    """For all epochs of a loader; None for one that is left as it is."""
    return Feeder(loader, How()) if can_feed(loader) and not loader.num_workers else None


class FedIter(_SingleProcessDataLoaderIter):
    """Draws what torch's own draws, and asks its sampler for the same indices; only who loads is another."""

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
        return pin_memory(batch) if self._pin_memory else batch
