"""Which batches of a DataLoader a worker takes, when workers go at their own pace.

The order is one for all workers: each iteration of a loader begins with the random streams of the worker that began it
first. Of every N batches, worker r takes the r-th ("every"); or a worker takes its r-th batch first and then always the
next one that no worker has taken ("free"), so that fast workers take more. Only training batches are dealt: every
worker evaluates on all samples.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch.utils.data import SequentialSampler

from paceline.script import streams
from paceline.script.patches import patch
from paceline.script.seams.stage import Stage
from paceline.torch_private import LoaderIterator
from paceline.wire.link import LinkStore

ITERABLE = 1  # torch's kind of dataset
Deal = Literal["every", "free"]


class Iteration:
    """One iteration of a training loader, as one worker sees it. `numbers` are those of the batches that it takes."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        self.passed = 0  # batches of the whole order, taken or left to others
        self.taken = 0
        self.is_short = False  # it has ended, and other workers took one batch more


class Dealing:
    """Installed on every worker. `at_end(iteration)` is called when a training iteration has ended."""

    def __init__(self, stage: Stage, store: LinkStore, *, rank: int, world: int, deal: Deal) -> None:
        self.stage, self._store, self.rank, self.world, self.deal = stage, store, rank, world, deal
        self.at_end: Callable[[Iteration], None] = lambda iteration: None
        self._loaders: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()  # number, iterations
        self._new = count()  # a loader that is gone keeps its number: each epoch may make a new one
        self._dealt: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._beginning: Iteration | None = None
        self._index = LoaderIterator._next_index
        patch(LoaderIterator, "_next_index", lambda iterator: self._next_index(iterator))
        stage.subscribe(self)

    # -- seams --------------------------------------------------------------------------------------------------------

    def around_iteration(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def begin(loader: Any) -> Any:
            if loader not in self._loaders:
                self._loaders[loader] = [next(self._new), -1]
            number, iterations = self._loaders[loader]
            self._loaders[loader][1] += 1
            key = f"loader {number}, iteration {iterations + 1}"
            self._dealt[loader] = is_dealt = self.stage.views.is_training()
            if not is_dealt:
                return plain(loader)
            streams.restore(msgspec.json.decode(self._store.compare_set(f"{key}: streams", b"", host_streams())))
            iteration = Iteration(self._numbers(key))
            kept = getattr(loader, "_iterator", None)  # of persistent processes: used again
            if kept is not None:
                kept.__dict__.pop("_paceline_dealt", None)
            self._beginning = iteration
            try:
                iterator = plain(loader)
            finally:
                self._beginning = None
            return self._attach(iterator, iteration)

        return begin

    def around_batch(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            iteration: Iteration | None = iterator.__dict__.get("_paceline_dealt")
            if iteration is None:
                return plain(iterator)
            try:
                if _is_iterable(iterator):  # no indices: the others' batches are read and dropped
                    return self._advance(iteration, lambda: plain(iterator))
                return plain(iterator)
            except StopIteration:
                self.at_end(iteration)
                raise

        return following

    def around_length(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def length(loader: Any) -> int:
            whole: int = plain(loader)
            # Before its first iteration, a loader that shuffles counts as a training loader.
            is_dealt = self._dealt.get(loader)
            if is_dealt is None:
                is_dealt = not isinstance(getattr(loader, "sampler", None), (SequentialSampler, type(None)))
            return -(-whole // self.world) if is_dealt else whole

        return length

    # -- batches ------------------------------------------------------------------------------------------------------

    def _numbers(self, key: str) -> Iterator[int]:
        yield self.rank  # also "free": no worker is left without a batch
        for number in count():
            free = self.deal == "free"
            yield self.world + self._store.add(key, 1) - 1 if free else self.world * (number + 1) + self.rank

    def _attach(self, iterator: Any, iteration: Iteration) -> Any:
        iterator.__dict__["_paceline_dealt"] = iteration
        return iterator

    def _next_index(self, iterator: Any) -> Any:
        """The indices of this worker's next batch. May run ahead of the script, for the loader's processes."""
        if self._beginning is not None:
            self._attach(iterator, self._beginning)
        iteration: Iteration | None = iterator.__dict__.get("_paceline_dealt")
        if iteration is None or _is_iterable(iterator):
            return self._index(iterator)
        return self._advance(iteration, lambda: self._index(iterator))

    def _advance(self, iteration: Iteration, following: Callable[[], Any]) -> Any:
        """Takes the worker's next batch from the whole order."""
        wanted = next(iteration.numbers)
        try:
            while iteration.passed <= wanted:
                batch = following()
                iteration.passed += 1
        except StopIteration:
            iteration.is_short = self.deal == "every" and -(-iteration.passed // self.world) > iteration.taken
            raise
        iteration.taken += 1
        return batch


def host_streams() -> bytes:
    """The script's random streams on the host; those of GPUs stay each worker's own."""
    states = [torch.get_rng_state()], random.getstate(), np.random.get_state()
    return msgspec.json.encode(streams.encoded(states))


def _is_iterable(iterator: Any) -> bool:
    return bool(iterator._dataset_kind == ITERABLE)
