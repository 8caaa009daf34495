"""Loader: separate processes prefetch the batches of a DataLoader.

Changes: only when samples are loaded; the samples and their order stay the same. The processes stay from epoch to
epoch, as long as the dataset does not change. On a GPU, batches are pinned and copied asynchronously. `loader=4:8`:
four processes, each prefetches eight batches. `loader=fast`, on one worker: threads or processes, whichever is faster;
tensor datasets are gathered one batch at a time, and datasets that draw random numbers or change their own state are
loaded as before. Applies to a DataLoader over a map-style dataset without worker processes; of a DataLoader with worker
processes, only the copies change. Can break: datasets that draw random numbers (augmentation), because the draws in
processes differ; datasets that cannot be pickled or that change their own state; scripts that write into a batch after
they copied it to the GPU; throughput if loading is cheap.

By hand:

    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=2, prefetch_factor=2, pin_memory=True)
    images = images.to(device, non_blocking=True)
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from paceline.mods import prospects
from paceline.mods.support.pinned_batches import PinnedTensor
from paceline.script import tree
from paceline.script.fingerprint import fingerprint
from paceline.script.seams.stage import Stage

AHEAD = 2  # prefetched batches of each process by default
_holder = SimpleNamespace(held=object())
OURS = sys.getrefcount(_holder.held)  # sys.getrefcount of an object that one attribute holds


class Mod:
    """Changes a loader before it is first iterated."""

    def __init__(self, value: str) -> None:
        processes, _, ahead = value.partition(":")
        self.fast = value == "fast"
        self.processes, self.ahead = 0 if self.fast else int(processes), int(ahead or AHEAD)
        self._met = self._changed = False
        self._feeders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._kept: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )  # loader → its dataset's fingerprint

    def on_stage(self, stage: Stage) -> None:
        self.alone = stage.group.world == 1
        stage.subscribe(self)

    def on_loader(self, loader: Any) -> None:
        self._met = True
        if self.fast:
            from paceline.mods.support.fast_loader import feeder_for

            self._feeders[loader] = feeder_for(loader) if self.alone else None
            self._changed |= self._feeders[loader] is not None
            return
        if loader.num_workers or isinstance(loader.dataset, IterableDataset):
            return
        loader.num_workers, loader.prefetch_factor = self.processes, self.ahead
        loader.pin_memory = loader.pin_memory or torch.cuda.is_available()
        self._kept[loader] = fingerprint(loader.dataset, identity=True)
        self._changed = True

    def idle(self) -> str:
        if self._changed:
            return ""
        if self.fast and not self.alone:
            return "it applies to one worker."
        if not self._met:
            return prospects.NO_LOADER
        return prospects.NOT_READ_BY_INDEX

    def around_iteration(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def begin(loader: Any) -> Any:
            if (feeder := self._feeders.get(loader)) is not None:
                from paceline.mods.support.fast_loader import FedIter

                return FedIter(loader, feeder)
            if loader not in self._kept:
                return plain(loader)
            if getattr(loader, "_iterator", None) is not None:
                now = fingerprint(loader.dataset, identity=True)
                if now != self._kept[loader]:  # the processes have an old copy of the dataset
                    self._kept[loader], loader._iterator = now, None
                elif sys.getrefcount(loader._iterator) > OURS:  # another loop over the same loader is still running
                    return _persisting(loader, plain, False)
                else:  # torch draws no seed for persistent processes, so without this draw the order would change
                    torch.empty((), dtype=torch.int64, device="cpu").random_(generator=loader.generator).item()
            return _persisting(loader, plain, True)

        return begin

    def on_batch(self, batch: Any) -> None:
        if torch.cuda.is_available():
            for leaf in tree.leaves(batch):
                if type(leaf) is torch.Tensor and leaf.is_pinned():
                    leaf.__class__ = PinnedTensor


def _persisting(loader: Any, plain: Callable[..., Any], stays: bool) -> Any:
    before = loader.persistent_workers
    object.__setattr__(loader, "persistent_workers", stays)  # DataLoader.__setattr__ forbids this after __init__
    try:
        return plain(loader)
    finally:
        object.__setattr__(loader, "persistent_workers", before)
