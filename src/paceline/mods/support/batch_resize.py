"""The samples of a loader in batches of another size, their order unchanged. The mod `batch` decides when.

Where torch's own BatchSampler makes the batches, another one of the new size does, over the same sampler. Batches that
something else makes (the script's own sampler, a dataset of batches) are joined, whole ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from paceline.errors import ScriptError
from paceline.script import loading, tree
from paceline.script.seams.stage import Stage

CONSTANT = (bool, int, float, type(None))  # beside the tensors of a batch: taken from its first part


class Growth:
    """How batches change, and which: decided in the same way by every worker."""

    def __init__(self, stage: Stage, asked: str) -> None:
        self.stage, self.asked = stage, asked
        self.times = float(asked[1:]) if asked.startswith("x") else 0.0  # 0: the first training batch tells
        self.old = self.new = 0  # samples of that batch, without and with the mod
        self._known: weakref.WeakKeyDictionary[Any, set[bool]] = weakref.WeakKeyDictionary()

    def known(self, loader: Any) -> set[bool]:
        """Whether a loader, or the one that an iterator is of, was trained on so far: always, never, now and then."""
        return self._known.setdefault(loading.known_of(loader), set())

    def is_due(self, known: set[bool]) -> bool:
        """Whether what is iterated now is trained on. A loader that was is again, even if the model is told to train
        only after its first batch."""
        training = self.stage.views.is_training() or (torch.is_grad_enabled() and True in known)
        known.add(due := training and not self.stage.aside)
        return due

    def counts(self, known: set[bool]) -> bool:
        """Whether a loader whose length is asked for is one to train on."""
        return True in known if len(known) == 1 else self.stage.views.is_training() and not self.stage.aside

    def guess(self, old: int, most: int | None = None) -> int:
        """The new size, as long as nothing was iterated. `most`: the samples that there are."""
        wanted = max(1, round(old * (self.times or int(self.asked) / old)))
        return wanted if most is None or most < old else min(wanted, most)

    def size(self, old: int, most: int | None) -> int:
        """The new size of a batch that can be made of any."""
        self._meet(old, new := self.guess(old, most))
        return new

    @property
    def many(self) -> int:
        """Whole batches that make a new one, as far as is known."""
        return max(1, round(self.times))

    def whole_batches(self, old: int) -> int:
        """How many batches, of which this is the first one's size, are joined."""
        times = self.times or int(self.asked) / old
        if round(times) < 1 or (self.asked.startswith("x") and round(times) != times):
            raise ScriptError(
                f"Asked for --mod batch={self.asked}, but the script makes its batches of {old} samples itself: they "
                "can be joined, not cut.",
                advice=f"Ask for a multiple: --mod batch={2 * old}",
            )
        self._meet(old, round(times) * old)
        return self.many

    def _meet(self, old: int, new: int) -> None:
        if not self.new:
            self.old, self.new, self.times = old, new, new / old


class Regrouped:
    """In the place of a loader's batch sampler, which `plain` is: decides at each iteration."""

    def __init__(self, plain: Any, growth: Growth, known: set[bool]) -> None:
        self.plain, self.growth, self.known = plain, growth, known

    def __iter__(self) -> Iterator[Any]:
        if not self.growth.is_due(self.known):
            return iter(self.plain)
        if type(self.plain) is not BatchSampler:
            return self._join(iter(self.plain))
        size = self.growth.size(self.plain.batch_size, _length(self.plain.sampler))
        return iter(BatchSampler(self.plain.sampler, size, self.plain.drop_last))

    def __len__(self) -> int:
        count = len(self.plain)
        if not self.growth.counts(self.known):
            return count
        if type(self.plain) is BatchSampler:
            size = self.growth.guess(self.plain.batch_size, _length(self.plain.sampler))
            return len(BatchSampler(self.plain.sampler, size, self.plain.drop_last))
        return -(-count // self.growth.many)

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not there yet: it is being copied
            raise AttributeError(name)
        return getattr(self.plain, name)

    def _join(self, batches: Iterator[Any]) -> Iterator[Any]:
        first = next(batches, None)
        if first is None:
            return
        many = self.growth.whole_batches(len(first))
        batches = chain([first], batches)
        while group := list(islice(batches, many)):
            yield [index for batch in group for index in batch]


def regroup(loader: DataLoader[Any], growth: Growth) -> None:
    """From its next iteration on. A loader forbids such changes to those who don't know its insides."""
    if loader.batch_sampler is not None and not isinstance(loader.batch_sampler, Regrouped):
        object.__setattr__(loader, "batch_sampler", Regrouped(loader.batch_sampler, growth, growth.known(loader)))


def length(loader: DataLoader[Any], plain: Callable[[Any], int], growth: Growth) -> int:
    """The loader's length in batches as they are now."""
    count, sampler = plain(loader), loader.batch_sampler
    if not growth.counts(growth.known(loader)):
        return count
    if not isinstance(sampler, Regrouped):
        return -(-count // growth.many)
    if not isinstance(loader.dataset, IterableDataset):
        return count  # the sampler's, already
    samples = len(loader.dataset)  # type: ignore[arg-type]
    size = growth.guess(sampler.plain.batch_size)
    return samples // size if loader.drop_last else -(-samples // size)


def join_more(first: Any, following: Callable[[], Any], growth: Growth, dim: int) -> Any:
    """A batch that its dataset made, and as many more of them as make the batch that was asked for."""
    tensor = tree.first_tensor(first)
    if tensor is None:
        raise _cannot_join(type(first).__name__)
    batches = [first]
    for _ in range(growth.whole_batches(tensor.shape[dim if tensor.dim() > dim else 0]) - 1):
        try:
            batches.append(following())
        except StopIteration:
            break
    odd = [leaf for leaf in tree.leaves(first) if not isinstance(leaf, (torch.Tensor, str, bytes, *CONSTANT))]
    if odd:
        raise _cannot_join(type(odd[0]).__name__)
    try:
        return loading.join(batches)
    except RuntimeError as error:
        raise _cannot_join(str(error)) from None


def _cannot_join(why: str) -> ScriptError:
    return ScriptError(
        f"Asked for another batch, but the dataset makes its own batches, and these cannot be joined: {why}",
        advice="Change the size of batches where the script makes them.",
    )


def _length(sampler: Iterable[Any]) -> int | None:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
