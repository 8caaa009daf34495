"""Loader: samples are loaded by processes of their own, ahead of the step that needs them.

Changes: nothing but when samples are loaded: the same ones in the same order. The processes stay from epoch to epoch,
as long as the dataset does not change; on a GPU batches are pinned, and copied while the host goes on. `loader=4:8`:
four processes, each eight batches ahead. `loader=fast`, on one worker: threads or processes, as measuring shows,
tensors gathered a batch at a time, and datasets that draw random numbers or keep count loaded as ever. Applies to a
DataLoader over a map-style dataset that loads in the script's own process; one that has processes is left alone, but
for the copies. Can break: datasets that draw random numbers (augmentation), which are other ones in the loader's
processes; datasets that cannot be pickled or that keep count; a script that writes into a batch after it has copied it
to the GPU; and speed where loading is cheap.

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

from paceline.mods.support.pinned_batches import PinnedTensor
from paceline.script import tree
from paceline.script.fingerprint import fingerprint
from paceline.script.seams.stage import Stage

AHEAD = 2  # batches of each process
_holder = SimpleNamespace(held=object())
OURS = sys.getrefcount(_holder.held)  # references to what one other object holds, as Python counts the question


class Mod:
    """Changes a loader before it is first iterated."""

    def __init__(self, value: str) -> None:
        processes, _, ahead = value.partition(":")
        self.fast = value == "fast"
        self.processes, self.ahead = 0 if self.fast else int(processes), int(ahead or AHEAD)
        self._feeders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._kept: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )  # loader → its dataset's fingerprint

    def on_stage(self, stage: Stage) -> None:
        self.alone = stage.group.world == 1
        stage.subscribe(self)

    def on_loader(self, loader: Any) -> None:
        if self.fast:
            from paceline.mods.support.fast_loader import feeder_for

            self._feeders[loader] = feeder_for(loader) if self.alone else None
            return
        if loader.num_workers or isinstance(loader.dataset, IterableDataset):
            return
        loader.num_workers, loader.prefetch_factor = self.processes, self.ahead
        loader.pin_memory = loader.pin_memory or torch.cuda.is_available()
        self._kept[loader] = fingerprint(loader.dataset, identity=True)

    def around_iteration(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def begin(loader: Any) -> Any:
            if (feeder := self._feeders.get(loader)) is not None:
                from paceline.mods.support.fast_loader import FedIter

                return FedIter(loader, feeder)
            if loader not in self._kept:
                return plain(loader)
            if getattr(loader, "_iterator", None) is not None:
                now = fingerprint(loader.dataset, identity=True)
                if now != self._kept[loader]:  # the processes have it as it was
                    self._kept[loader], loader._iterator = now, None
                elif sys.getrefcount(loader._iterator) > OURS:  # another loop goes on over the same loader
                    return _persisting(loader, plain, False)
                else:  # torch would draw no seed for processes that have theirs, and the order of samples would change
                    torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
            return _persisting(loader, plain, True)

        return begin

    def on_batch(self, batch: Any) -> None:
        if torch.cuda.is_available():
            for leaf in tree.leaves(batch):
                if type(leaf) is torch.Tensor and leaf.is_pinned():
                    leaf.__class__ = PinnedTensor


def _persisting(loader: Any, plain: Callable[..., Any], stays: bool) -> Any:
    before = loader.persistent_workers
    object.__setattr__(loader, "persistent_workers", stays)  # it forbids this to those who don't know its insides
    try:
        return plain(loader)
    finally:
        object.__setattr__(loader, "persistent_workers", before)
