"""Where the iteration of a torch DataLoader stands, and how a later process continues there.

Remembered for each loader: the batches that were handed out in the iteration under way, and the random states at its
start, which decide its order. An iteration that continues draws the same order again, and skips the batches that were
handed out, without loading them. What torch and a script see of a loader stays the same. Works with and without
`paceline run`: `watch` is called by `import paceline`.

Known gap: a sampler that draws from the script's streams for every batch, instead of at the start of an iteration, goes
on with other indices.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from paceline.errors import CheckpointError
from paceline.imports import after_import

HOME = "torch.utils.data.dataloader"
_holder = SimpleNamespace(held=object())
OURS = sys.getrefcount(_holder.held)  # sys.getrefcount of an object that one attribute holds


class Iteration:
    """One iteration over a loader. Its iterator holds it: a loop that was left is no longer under way."""

    def __init__(self, start: dict[str, Any], batches: int, each: int) -> None:
        self.start = start  # random states when it began
        self.batches, self.each = batches, each  # handed out so far, and in one batch that is handed out
        self.going = True

    def hand_out(self) -> None:
        self.batches += self.each

    def end(self) -> None:
        self.going = False


class Position:
    """The position of one loader."""

    def __init__(self) -> None:
        self._now: weakref.ref[Iteration] | None = None
        self.begins = False  # an iterator is being made
        self.skip: dict[str, Any] | None = None  # the next iteration continues from this state
        self.is_seeded = False  # the next iteration draws no seed: the processes of the saved run had theirs

    @property
    def iteration(self) -> Iteration | None:
        """The latest iteration, if it is under way."""
        now = None if self._now is None else self._now()
        return now if now is not None and now.going else None

    @iteration.setter
    def iteration(self, now: Iteration | None) -> None:
        self._now = None if now is None else weakref.ref(now)


_positions: weakref.WeakKeyDictionary[Any, Position] = weakref.WeakKeyDictionary()
_following: list[Callable[[Any], Any]] = []  # torch's own step of an iterator


def watch() -> None:
    """From now on the positions of all loaders are known. Does not import torch."""
    after_import(HOME, _watch)


def _watch(module: Any) -> None:
    # Called in the midst of `import torch`: nothing of torch can be used yet.
    loader, iterator = module.DataLoader, vars(module)["_BaseDataLoaderIter"]
    begin_plainly, following = loader.__iter__, iterator.__next__

    def __iter__(self: Any) -> Any:
        return begin(self, begin_plainly)

    def __next__(self: Any) -> Any:
        iteration = self.__dict__.get("_paceline_iteration")
        if iteration is None:
            return following(self)
        try:
            batch = following(self)
        except StopIteration:
            iteration.end()
            raise
        iteration.hand_out()
        return batch

    _following.append(following)
    loader.__iter__, iterator.__next__ = __iter__, __next__


def position_of(loader: Any) -> Position:
    """The position of a loader. Also of one that was not iterated yet."""
    return _positions.setdefault(loader, Position())


def begin(loader: Any, plain: Callable[[Any], Any], *, each: int = 1) -> Any:
    """An iterator over the loader, made by `plain`, at the place where a restored state says. `each`: the number of the
    script's batches in one batch that is handed out."""
    from paceline.torch_private import LoaderIterator

    position = position_of(loader)
    if position.begins:  # the stage's seam began it already
        return plain(loader)
    position.begins = True
    try:
        state, position.skip = position.skip, None
        if state is None:
            iteration = Iteration(_start_of(loader, position), 0, each)
            iterator = _unseeded(loader, plain) if position.is_seeded else plain(loader)
        else:
            iteration = Iteration(state["start"], state["batches"], each)
            iterator = _continued(loader, plain, state)
    finally:
        position.begins = position.is_seeded = False
    position.iteration = iteration
    if isinstance(iterator, LoaderIterator):
        iterator.__dict__["_paceline_iteration"] = iteration
        return iterator
    return _counted(iterator, iteration)


def _counted(iterator: Iterator[Any], iteration: Iteration) -> Iterator[Any]:
    for batch in iterator:
        iteration.hand_out()
        yield batch
    iteration.end()


def _start_of(loader: Any, position: Position) -> dict[str, Any]:
    from paceline.script import rng, streams

    own = [streams.state_of(generator) for generator in _generators(loader)]
    return {"streams": rng.snapshot(), "generators": own, "seeds": not (_keeps_seed(loader) or position.is_seeded)}


def _keeps_seed(loader: Any) -> bool:
    """Whether persistent processes run: they are not seeded again, so their next iteration draws no seed."""
    return bool(loader.persistent_workers and loader.num_workers and getattr(loader, "_iterator", None) is not None)


def _unseeded(loader: Any, plain: Callable[[Any], Any]) -> Any:
    """A new iterator whose processes get a seed that is not drawn from the script's streams."""
    import torch

    generator, loader.generator = loader.generator, torch.Generator()
    loader.generator.set_state(torch.get_rng_state())
    try:
        return plain(loader)
    finally:
        loader.generator = generator


def _generators(loader: Any) -> list[Any]:
    from paceline.script import streams

    return streams.generators_in(loader.generator, loader.sampler, loader.batch_sampler)


def state_of(loader: Any) -> dict[str, Any]:
    """The loader's position as JSON."""
    from paceline.script import streams

    position = position_of(loader)
    now = [streams.state_of(generator) for generator in _generators(loader)]
    state = {"loader": 1, "batch_size": loader.batch_size, "samples": _length(loader.dataset), "generators": now}
    iteration = position.iteration
    if iteration is None or _is_left(loader):  # a restored position that no loop has used yet is still the position
        seeded = _keeps_seed(loader) or position.is_seeded
        return state | ({"at": position.skip} if position.skip is not None else {"seeded": seeded})
    count, start = iteration.batches, iteration.start
    if (most := _length(loader.batch_sampler)) is not None:
        count = min(count, most)
    if isinstance(start["streams"], tuple):
        start = start | {"streams": streams.encoded(start["streams"])}
    return state | {"at": {"batches": count, "start": start}}


def _is_left(loader: Any) -> bool:
    """Whether the loop over persistent processes was left: then only the loader holds their iterator."""
    return getattr(loader, "_iterator", None) is not None and sys.getrefcount(loader.__dict__["_iterator"]) <= OURS


def faults_of(loader: Any, state: dict[str, Any]) -> list[str]:
    """Why a state is not one of this loader."""
    pairs = [("batch_size", loader.batch_size), ("samples", _length(loader.dataset))]
    names = {"batch_size": "batch size", "samples": "length of the dataset"}
    faults = [f"{names[key]}: saved {state[key]}, now {now}" for key, now in pairs if state.get(key) != now]
    if len(state["generators"]) != len(_generators(loader)):
        faults.append(f"random generators: saved {len(state['generators'])}, now {len(_generators(loader))}")
    return faults


def restore(loader: Any, state: dict[str, Any]) -> None:
    """The next iteration of the loader continues from the state."""
    position = position_of(loader)
    position.iteration, position.skip, position.is_seeded = None, state.get("at"), state.get("seeded", False)
    _set_generators(loader, state["generators"])


def _set_generators(loader: Any, states: list[Any]) -> None:
    from paceline.script import streams

    for generator, state in zip(_generators(loader), states, strict=True):
        streams.set_state(generator, state)


def _continued(loader: Any, plain: Callable[[Any], Any], state: dict[str, Any]) -> Any:
    """An iterator behind the batches that were handed out. All streams are afterwards as they were before: the script
    goes on drawing where it stopped."""
    from paceline.script import rng, streams

    now, own, start = rng.snapshot(), [streams.state_of(one) for one in _generators(loader)], state["start"]
    try:
        _go_to(loader, start)
        if _is_iterable(loader):
            iterator = plain(loader)
            with contextlib.suppress(StopIteration):
                for _ in range(state["batches"]):
                    _following[0](iterator)
            return iterator
        by_index = "sampler" if loader.batch_sampler is None else "batch_sampler"
        indices = loader.__dict__[by_index]
        skipping = Skipping(indices, state["batches"], lambda: _seed(loader, start), lambda: _go_to(loader, start))
        loader.__dict__[by_index] = skipping  # DataLoader.__setattr__ forbids this after __init__
        try:
            return plain(loader)
        finally:
            loader.__dict__[by_index] = indices
            skipping.armed = False
    finally:
        rng.restore(now)
        for generator, before in zip(_generators(loader), own, strict=True):
            streams.set_state(generator, before)


def _go_to(loader: Any, start: dict[str, Any]) -> None:
    from paceline.script import streams

    streams.restore(start["streams"])
    _set_generators(loader, start["generators"])


def _seed(loader: Any, start: dict[str, Any]) -> None:
    """Draws what a DataLoader draws before its sampler does: a seed for its processes, even if it has none."""
    import torch

    _go_to(loader, start)
    if start["seeds"]:
        torch.empty((), dtype=torch.int64, device="cpu").random_(generator=loader.generator)


class Skipping:
    """A sampler without its first entries. Persistent processes keep it: after the first iteration nothing is left
    out."""

    def __init__(self, indices: Any, count: int, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.indices, self.count, self.armed = indices, count, True
        self._before, self._after = before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["indices"], name)

    def __len__(self) -> int:
        return max(0, len(self.indices) - (self.count if self.armed else 0))

    def __iter__(self) -> Iterator[Any]:
        if not self.armed:
            return iter(self.indices)
        self._before()
        found = iter(self.indices)
        for number in range(self.count):
            try:
                next(found)
            except StopIteration:
                raise CheckpointError(
                    f"The loader's sampler ended after {number} batches; {self.count} were handed out before the save.",
                    advice="Resume with the dataset and the sampler of the run that was saved.",
                ) from None
        self._after()
        return found


def _is_iterable(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except TypeError:
        return None
