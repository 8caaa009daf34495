"""`drop_in`: a faster replacement for a script's DataLoader, with the same batches in the same order.

The loader's own sampler chooses the samples of a batch and draws from the script's random stream what a DataLoader
would draw. Tensor datasets are gathered, one batch at a time. Other datasets are prefetched by threads or processes,
whichever is faster. Datasets that draw random numbers or change their own state while they load are loaded in the
script's thread, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from paceline.data.execution.engines import Runtime
from paceline.data.execution.parallel_map import Jobs
from paceline.data.execution.prefetch import PrefetchNode
from paceline.data.planner import PipelinePlan
from paceline.data.planning.job import Step, Where, Work
from paceline.data.planning.nodes import Context, Cursor, Mark, Through
from paceline.data.planning.stages import How, Kind
from paceline.data.report import Report, keeper, report_of
from paceline.data.sources.memory import Arrays, of_dataset
from paceline.errors import UsageError
from paceline.script import loader_position, rng
from paceline.script.fingerprint import fingerprint
from paceline.script.seams.loading import keeps_generator

# These samplers draw their indices when an epoch begins, so prefetching does not change the random stream.
KNOWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def drop_in(loader: Any, *, parallel: int | None = None, kind: Kind = "auto") -> DropIn:
    """Replaces `loader` in a loop. The result has the loader's length and attributes."""
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"drop_in() got a {type(loader).__name__}, not a DataLoader.",
            advice="Pass a torch.utils.data.DataLoader.",
        )
    return DropIn(loader, How(parallel=parallel, kind=kind))


class DropIn:
    """The replacement of one loader, for all epochs."""

    def __init__(self, loader: DataLoader[Any], how: How) -> None:
        self.loader = loader
        self._feeder = Feeder(loader, how)
        self._begun = False

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator[Any]:
        return loader_position.begin(self.loader, self._begin)

    def _begin(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if not can_feed(loader):
            self._feeder.why = "its dataset is iterable, or it does not batch"
            return iter(loader)
        indices = iter(loader.batch_sampler)  # type: ignore[arg-type]
        if not (self._begun and loader.persistent_workers and loader.num_workers):
            # A DataLoader draws a seed for its processes here, even if it has no processes.
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        self._begun = True
        batches = self._feeder.batches(indices, _length(loader))
        return map(_pinned, batches) if loader.pin_memory and torch.accelerator.is_available() else batches

    @property
    def why(self) -> str:
        """Why batches are loaded in the script's thread; empty if they are prefetched."""
        return self._feeder.why

    def report(self) -> Report:
        """The cost of loading, and where loading runs."""
        return report_of(self._feeder.runtime)

    def close(self) -> None:
        """Ends its threads and processes; a new loop starts them again."""
        self._feeder.runtime.close(wait=True)


def can_feed(loader: DataLoader[Any]) -> bool:
    return not isinstance(loader.dataset, IterableDataset) and loader.batch_sampler is not None


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader.batch_sampler)  # type: ignore[arg-type]
    except TypeError:
        return None


def _pinned(batch: Any) -> Any:
    from paceline.torch_private import pinning

    return pinning.pin_memory(batch)


class Feeder:
    """Makes the batches of a loader from their indices, for all epochs. Holds no reference to the loader."""

    def __init__(self, loader: DataLoader[Any], how: How) -> None:
        self._dataset: Any = loader.dataset
        self._collate: Any = loader.collate_fn
        self._known = _is_known(loader.batch_sampler)
        self._how = how
        self.runtime = Runtime()
        self.why = ""
        self._nodes: tuple[Jobs, PrefetchNode] | None = None
        self._contents: Any = None  # fingerprint of the dataset when the nodes were made

    def __del__(self) -> None:
        self.runtime.close(wait=False)

    def batches(self, indices: Iterator[Any], count: int | None) -> Iterator[Any]:
        """A batch for each of the `count` lists of indices (None: the number is unknown)."""
        if self._nodes is not None and fingerprint(self._dataset, identity=True) != self._contents:
            self._nodes = None
            self.runtime.close(wait=True)
        if self._nodes is None:
            first = next(indices, None)
            if first is None:
                return
            batch, alone = self._look(first)
            yield batch
            if alone:
                yield from (self._fetch(index) for index in indices)
                return
            count = None if count is None else count - 1
        assert self._nodes is not None
        cursor = PipelinePlan([Lists(indices, count), *self._nodes]).open(Context(), None)
        clock, kept = self.runtime.clock, keeper()
        if kept is not None:
            kept.begins(self.runtime, f"loader over {type(self._dataset).__name__}")
        try:
            while True:
                clock.asked()
                got = cursor.take(1)
                if not got:
                    break
                clock.answered()
                yield got[0]
            clock.ended()
            next(indices, None)  # a sampler may draw at its end
            if kept is not None:
                kept.ended(self.runtime)
        finally:
            cursor.close()

    def _look(self, first: Any) -> tuple[Any, bool]:
        """Loads the first batch in this thread, and returns it and whether all batches must be loaded here."""
        before, state = rng.snapshot(), fingerprint(self._dataset)
        batch = self._fetch(first)
        if rng.drawn_since(before) or keeps_generator(self._dataset):
            self.why = "its dataset draws random numbers"
        elif state != fingerprint(self._dataset):
            self.why = "its dataset changes its own state"
        elif not self._known:
            self.why = "its sampler is defined by the script"
        if self.why:
            return batch, True
        self._contents = fingerprint(self._dataset, identity=True)
        work = Work(steps=(Step(self._gatherer() or self._fetch),))
        meter = self.runtime.meter("load")
        jobs = Jobs(work=work, losses=self.runtime.losses, meter=meter, pools=self.runtime.chooser(self._how))
        self._nodes = jobs, PrefetchNode(None, self.runtime.meter("prefetch"))
        return batch, False

    def _fetch(self, indices: Any) -> Any:
        many = getattr(self._dataset, "__getitems__", None)
        samples = many(indices) if many else [self._dataset[index] for index in indices]
        return self._collate(samples)

    def _gatherer(self) -> Callable[[list[int]], Any] | None:
        if self._collate is not default_collate:
            return None
        source = of_dataset(self._dataset)
        if not isinstance(source, Arrays):
            return None
        columns = source.columns

        def gather(indices: list[int]) -> list[torch.Tensor]:
            chosen = torch.tensor(indices)
            return [column.index_select(0, chosen) for column in columns]

        return gather


def _is_known(sampler: Any) -> bool:
    return type(sampler) is BatchSampler and type(sampler.sampler) in KNOWN


class Lists(Through):
    """The first node: a sampler's lists of indices. Never asks for more than `count` lists: the consumer ends the
    sampler, because a sampler may draw random numbers at its end."""

    def __init__(self, indices: Iterator[Any], count: int | None) -> None:
        self.indices, self.count = indices, count

    def open(self, up: Any, context: Context, mark: Mark | None) -> Cursor:
        return ListsCursor(self)


class ListsCursor(Cursor):
    def __init__(self, node: Lists) -> None:
        self._indices, self._left = node.indices, node.count
        self._last: list[Any] = []

    def take(self, count: int) -> list[Any]:
        if self._left is not None:
            count = min(count, self._left)
            self._left -= count
        self._last = []
        for _ in range(count):
            index = next(self._indices, None)
            if index is None:
                break
            self._last.append(index)
        return self._last

    def mark(self) -> Mark:
        return {}

    def where(self) -> Where:
        last = self._last

        def name(number: int) -> str:
            shown = ", ".join(map(str, last[number][:4]))
            return f"the batch of samples {shown}{', …' if len(last[number]) > 4 else ''}"

        return name
