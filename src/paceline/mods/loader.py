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

import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.data.planning.stages import How
from paceline.data.torch_loader import Feeder, can_feed
from paceline.mods import prospects
from paceline.script import tree
from paceline.script.fingerprint import fingerprint
from paceline.script.seams.stage import Stage
from paceline.torch_private import LoaderIteratorInProcess, OwnTensor, disabled_torch_function, pinning

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


# -- loader=fast ------------------------------------------------------------------------------------------------------


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


# -- pinned tensors of a batch ----------------------------------------------------------------------------------------
# For the mod `loader`.
#
# This is safe as long as no code writes to such a tensor after the copy has started: the copy may still be running.


class PinnedTensor(OwnTensor):
    """A tensor whose `to` and `cuda` are non-blocking by default. All results are plain tensors."""

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain().to(*args, **kwargs if len(args) > 1 else {"non_blocking": True} | kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain().cuda(*args, **kwargs if len(args) > 1 else {"non_blocking": True} | kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._plain(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def _plain(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)
