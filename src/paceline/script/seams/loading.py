"""DataLoaders on several workers: the order is the script's own, and on a host only one worker loads each sample.

The sampler runs on every worker under the script's random streams, so all workers have the same indices. The indices of
each batch are split: a worker fetches its own rows. In the batch view the rows are combined through shared memory; in
the slice view they are the worker's batch. Every worker loads the whole first batch, to prove that loading has no side
effects. Every worker also loads whole batches in these cases:

- The dataset draws from the script's random streams while it loads (augmentation): only then are the draws those of one
  process.
- Batches are not lists of indices: iterable datasets, loaders without batches.
- The strategy splits a model's parameters, and the dataset can call a model: a call needs all workers.
- In the batch view, the script has its own collate function, which may look at all samples of a batch (padding).

Works in the script's process and, after the fork, in the loader's worker processes.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from paceline.comm.pulse import Pulse
from paceline.comm.shm_exchange import Segments
from paceline.errors import ScriptError
from paceline.script import loader_position, rng, tree
from paceline.script.fingerprint import fingerprint, held_by
from paceline.script.patches import all_of, patch
from paceline.script.rows.crossings import Split, Usage
from paceline.torch_private import LoaderIterator, MapDatasetFetcher, parameters_in, pinning

if TYPE_CHECKING:
    from paceline.script.seams.stage import Stage


MAP, ITERABLE = 0, 1  # torch's kinds of dataset
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
CLOSED = (
    torch.Tensor,
    np.ndarray,
    str,
    bytes,
    int,
    float,
    type,
    types.ModuleType,
)  # types that cannot hold a random generator


class Dealt(list[Any]):
    """A batch's indices, and the part of them that this worker fetches. Is sent to the loader's worker processes."""

    start: int
    stop: int
    use: Literal["share", "slice"]  # combine the rows of all workers, or keep the own rows
    proves: bool = False  # fetch the whole batch, and check that loading has no side effects


NO, PROOF, ALWAYS = 0, 1, 2  # whether the whole batch was fetched: no, as the proof, or always


@dataclass(slots=True, eq=False, weakref_slot=True)
class LoaderState:
    """The state of a loader. Its iterators hold this object, not the loader, because the loader may be freed before
    them (`for x in DataLoader(…)`), and earlier on one worker than on another."""

    whole: bool | None = None  # every worker must load whole batches
    proven: bool = False  # loading has no side effects
    usages: dict[Hashable, Usage] = field(default_factory=dict)  # of the tensors of its batches, by their place there


class Part:
    """The data fetched for a `Dealt`: this worker's rows, or the whole batch (for the proof, or because rows are not
    enough)."""

    def __init__(self, data: Any, dealt: Dealt, *, whole: int, before: Any = None) -> None:
        self.data, self.dealt, self.whole = data, dealt, whole
        self.before = before  # the random streams before the fetch, in the script's process


def find(stage: Stage) -> Callable[[], None]:
    """Installs the seams of DataLoader. Returns a function that removes them."""
    fetch, following, index = MapDatasetFetcher.fetch, LoaderIterator.__next__, LoaderIterator._next_index
    length, begin = DataLoader.__len__, DataLoader.__iter__
    dealer = Dealer(stage, fetch, index)
    alone = stage.group.world == 1

    @stage.guarded
    def __next__(self: Any) -> Any:
        stage.watch.enter("data")
        try:
            take = stage.around("around_batch", following)
            with stage.loading():
                batch = take(self) if alone else dealer.receive(self, lambda: take(self))
        finally:
            stage.watch.leave()
        stage.emit("on_batch", batch)
        return batch if alone else stage.shown(batch, known_of(self).usages)

    @stage.guarded
    def __iter__(self: Any) -> Any:
        if self not in stage.loaders:
            stage.loaders.add(self)
            stage.has_loader = True
            stage.emit("on_loader", self)
        grown = dealer.grows and self.batch_sampler is not None and not isinstance(self.dataset, IterableDataset)
        each = dealer.times if grown else 1
        iterator = loader_position.begin(self, stage.around("around_iteration", begin), each=each)
        # Not the loader itself: a reference cycle would end its processes late, in an order that makes them wait.
        iterator._paceline = known_of(self)
        return iterator

    @stage.guarded
    def __len__(self: Any) -> int:
        whole: int = stage.around("around_length", length)(self)
        return -(-whole // dealer.times)

    undo = [
        patch(LoaderIterator, "__next__", __next__),
        patch(DataLoader, "__iter__", __iter__),
        patch(DataLoader, "__len__", __len__),
        patch(MapDatasetFetcher, "fetch", lambda self, index: _fetch(fetch, stage.pulse, self, index)),
        # torch's check counts the worker's cores, but the loader's processes may use all cores.
        patch(DataLoader, "check_worker_number_rationality", lambda self: None),
    ]
    if not alone:
        undo.append(patch(LoaderIterator, "_next_index", lambda self: dealer.deal(self)))
    return all_of(undo)


def _fetch(plain: Callable[..., Any], pulse: Pulse, fetcher: Any, index: Any) -> Any:
    """Fetches this worker's part of a batch, in the script's process or a loader's process."""
    if get_worker_info() is not None:
        _spread_out()
    if not isinstance(index, Dealt):
        return plain(fetcher, index)
    rows = list(index[index.start : index.stop])
    before = rng.snapshot()
    if index.use == "slice":
        data = _fetch_alone(plain, pulse, fetcher, rows or index[:1])
        if rng.drawn_since(before):
            rng.restore(before)
            data = tree.replace(plain(fetcher, list(index)), lambda leaf: _own_rows(leaf, index))
        return Part(data, index, whole=NO)
    if index.proves:
        state, met = fingerprint(fetcher.dataset), pulse.collectives
        data = plain(fetcher, list(index))
        fine = not rng.drawn_since(before) and state == fingerprint(fetcher.dataset) and pulse.collectives == met
        if fine and all(map(_can_travel, tree.leaves(data))):
            return Part(data, index, whole=PROOF)
        return Part(data, index, whole=ALWAYS)
    data = _fetch_alone(plain, pulse, fetcher, rows) if rows else None
    if not rng.drawn_since(before):
        return Part(data, index, whole=NO, before=None if get_worker_info() else before)
    rng.restore(before)
    return Part(plain(fetcher, list(index)), index, whole=ALWAYS)


def _fetch_alone(plain: Callable[..., Any], pulse: Pulse, fetcher: Any, rows: list[Any]) -> Any:
    """Fetches samples that no other worker fetches. A collective is refused."""
    pulse.alone = threading.get_ident()
    try:
        return plain(fetcher, rows)
    finally:
        pulse.alone = 0


@functools.cache
def _spread_out() -> None:
    """Lets a loader's process use all cores, not only those of its worker. Runs once in each process."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _own_rows(leaf: Any, index: Dealt) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == len(index):
        return leaf[index.start : index.stop] if index.stop > index.start else leaf[:1]
    return leaf


def _can_travel(leaf: Any) -> bool:
    return not isinstance(leaf, torch.Tensor) or (leaf.device.type == "cpu" and leaf.layout is torch.strided)


class Dealer:
    """Splits the indices of batches, and combines the rows. All workers call `deal` and `receive` in the same order."""

    def __init__(self, stage: Stage, fetch: Callable[..., Any], index: Callable[..., Any]) -> None:
        self.stage, self.group = stage, stage.group
        self.grows = stage.run.batch == "scale" and self.group.world > 1
        self.times = self.group.world if self.grows else 1  # also if workers of an elastic run are lost
        self._fetch, self._index = fetch, index
        # The samples of a batch are shared among the workers of a host: hosts exchange none, and each loads them all.
        self._near = self.group.here()
        self._segments = Segments(self._near)

    def deal(self, iterator: Any) -> Any:
        """The next batch's indices, with this worker's part marked."""
        index = self._next_index(iterator)
        batched = getattr(iterator, "_auto_collation", False) and isinstance(index, (list, tuple))
        mapped = iterator._dataset_kind == MAP
        # In an elastic run each worker loads all samples: those of a lost one would be missing.
        if self._leaves_alone() or not batched or not mapped or self.group.members is not None:
            return index
        slices = self.stage.views.wants_slices()
        if not slices and self._must_load_whole(iterator):
            return index
        # Workers with parts of the same rows, along another axis than data, get the same slice.
        split = Split.of(self.stage.rows if slices else self._near, len(index))
        dealt = Dealt(index)
        dealt.start, dealt.stop = split.start, split.start + split.mine
        dealt.use = "slice" if slices else "share"
        # The first batch of each loading process is the proof; later iterators of the loader need none.
        count = iterator.__dict__["_paceline_dealt"] = iterator.__dict__.get("_paceline_dealt", 0) + 1
        dealt.proves = not known_of(iterator).proven and count <= max(1, iterator._num_workers)
        return dealt

    def receive(self, iterator: Any, following: Callable[[], Any]) -> Any:
        """The batch that the script gets: the whole batch, or in the slice view this worker's rows."""
        batch, views = following(), self.stage.views
        if self._leaves_alone():
            return batch
        if isinstance(batch, Part):
            if batch.dealt.use == "slice":
                views.hand_out(Split.of(self.stage.rows, len(batch.dealt)))
                return self._pinned(iterator, batch.data)
            batch = self._pinned(iterator, self._put_together(iterator, batch))
        elif self.grows and iterator._dataset_kind == ITERABLE:
            batch = self._grown(batch, following)
        whole = iterator._dataset_kind == ITERABLE or (self.group.members is not None and iterator._auto_collation)
        if whole and views.wants_slices():
            return self._cut(batch)
        views.hand_out(None)
        return batch

    def _leaves_alone(self) -> bool:
        """Whether every worker loads whole batches without Paceline. In a thread of the script, batches and collectives
        have no fixed order, so rows cannot be exchanged there."""
        in_thread = threading.current_thread() is not threading.main_thread()
        alone = self.group.world == 1 and self.group.members is None  # from the start
        return alone or self.stage.aside or in_thread

    def _put_together(self, iterator: Any, part: Part) -> Any:
        split = Split.of(self._near, len(part.dealt))
        data = None if part.whole else part.data
        parts, whole = self._segments.exchange(data, part.whole, "the samples of a batch")
        if ALWAYS in whole:
            known_of(iterator).whole = True
            if NO in whole and iterator._num_workers:
                raise ScriptError(
                    "The dataset draws random numbers for some samples and not for others, in the loader's processes, "
                    "where the workers cannot be kept equal.",
                    advice="Load in the script's own process (num_workers=0), or use --mod view=slice.",
                )
            if part.whole == NO:
                # Another worker's samples drew random numbers: load the whole batch, to draw as one process would.
                rng.restore(part.before)
                return self._fetch(iterator._dataset_fetcher, list(part.dealt))
        if part.whole:
            known_of(iterator).proven = True
            return part.data
        return join([piece for piece, size in zip(parts, split.sizes, strict=True) if size])

    def _cut(self, batch: Any) -> Any:
        """This worker's rows of a batch that every worker loaded whole, in the slice view."""
        size = next((leaf.shape[0] for leaf in tree.leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
        split = Split.of(self.stage.rows, size)
        self.stage.views.hand_out(split)
        borrowed = not split.mine

        def own(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size and size:
                return leaf[:1] if borrowed else _rows(leaf, split)
            return leaf

        return tree.replace(batch, own)

    def _next_index(self, iterator: Any) -> Any:
        index = self._index(iterator)
        mapped = iterator._dataset_kind == MAP
        if self.grows and mapped and getattr(iterator, "_auto_collation", False) and isinstance(index, list):
            for _ in range(self.times - 1):
                try:
                    index = index + self._index(iterator)
                except StopIteration:
                    break
        return index

    def _grown(self, batch: Any, following: Callable[[], Any]) -> Any:
        """Joins as many batches of an iterable dataset as there are workers, for `--batch scale`."""
        batches = [batch]
        while len(batches) < self.times:
            try:
                batches.append(following())
            except StopIteration:
                break
        return join(batches)

    def _must_load_whole(self, iterator: Any) -> bool:
        known = known_of(iterator)
        if known.whole is None:
            own_collate = iterator._collate_fn is not default_collate
            known.whole = own_collate or keeps_generator(iterator._dataset) or self._asks_split_model(iterator)
        return known.whole

    def _asks_split_model(self, iterator: Any) -> bool:
        """Whether samples come out of a model whose parameters are split: its calls need all workers."""
        return not self.stage.strategy.whole_models and keeps_model(iterator._dataset)

    def _pinned(self, iterator: Any, batch: Any) -> Any:
        return pinning.pin_memory(batch) if iterator._pin_memory else batch


def known_of(loader: Any) -> LoaderState:
    """The state of a loader, or of an iterator's loader."""
    known: LoaderState = loader.__dict__.setdefault("_paceline", LoaderState())
    return known


def _rows(leaf: Any, split: Split) -> Any:
    return leaf[split.start : split.start + split.mine] if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf


def keeps_generator(dataset: Any) -> bool:
    """Whether a dataset has its own random generator, whose draws depend on the samples loaded before: in an attribute,
    in a transform, or in an object that its functions refer to."""
    return _reaches(dataset, lambda thing: isinstance(thing, GENERATORS), 5, set())


def keeps_model(dataset: Any) -> bool:
    """Whether a dataset can call a module that has parameters."""
    return _reaches(
        dataset, lambda thing: isinstance(thing, nn.Module) and next(parameters_in(thing), None) is not None, 5, set()
    )


def _reaches(thing: Any, is_wanted: Callable[[Any], bool], depth: int, seen: set[int]) -> bool:
    if is_wanted(thing):
        return True
    if not depth or id(thing) in seen or isinstance(thing, CLOSED):
        return False
    seen.add(id(thing))
    return any(_reaches(item, is_wanted, depth - 1, seen) for item in held_by(thing))


def join(parts: list[Any]) -> Any:
    """Joins collated parts of a batch, as `default_collate` would have made the whole batch."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return tree.with_items(first, {key: join([part[key] for part in parts]) for key in first})
    if isinstance(first, (list, tuple)):
        if first and isinstance(first[0], (str, bytes)):
            return type(first)(item for part in parts for item in part)
        columns = [join(list(column)) for column in zip(*parts, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    return first
