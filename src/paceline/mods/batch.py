"""Batch: another size of the training batches, with the learning rate scaled accordingly.

Changes: the mathematics. A step sees more samples (or fewer), so there are fewer (or more) steps, and the learning rate
is multiplied by the factor (linear), by its square root (sqrt), or not at all (none). The default is linear for SGD,
and the square root for optimizers that normalise by gradient magnitude (Adam). Applies to DataLoaders that are iterated
while a model trains; evaluation loaders keep their batch. `batch=512` sets the first training loader's batch, and the
batches of other training loaders are scaled by the same factor; no batch is larger than its dataset.
Can break: accuracy, and values that a script computes from its own batch size.

By hand:

    loader = DataLoader(dataset, K * batch_size, shuffle=True)  # batch=xK
    optimizer = torch.optim.SGD(model.parameters(), lr=K * lr)  # √K where Adam takes the steps, or with :sqrt
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from paceline.converge.schedules import scale_rate
from paceline.errors import ScriptError
from paceline.mods.lr_scale import Rates, usual_rule
from paceline.script import tree
from paceline.script.seams import loading
from paceline.script.seams.stage import Stage

ADVICE = "Change the batch in the script, or leave the mod out."


class Mod:
    """Changes a loader's batches before its first iteration, and learning rates during a step only, so that the
    script's scheduler is not affected."""

    def __init__(self, value: str) -> None:
        self.asked, _, self.rule = value.partition(":")
        self._told = ""

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.growth = stage, Growth(stage, self.asked)
        self.rates = Rates.of(stage)
        stage.subscribe(self)

    # -- batches ---------------------------------------------------------------------------------------------------

    def on_loader(self, loader: Any) -> None:
        regroup(loader, self.growth)

    def around_length(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def length(loader: Any) -> int:
            regroup(loader, self.growth)
            return grown_length(loader, plain, self.growth)

        return length

    def around_batch(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            batch = plain(iterator)
            if iterator._auto_collation or not self.growth.is_due(self.growth.known(iterator)):
                return batch  # the batch sampler has already set its size
            return join_more(batch, lambda: plain(iterator), self.growth, self.stage.run.batch_dim)

        return following

    # -- the learning rate -----------------------------------------------------------------------------------------

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        if not self.growth.new and not self.stage.aside:
            raise ScriptError(
                f"--mod batch={self.asked}: the script trains without a DataLoader, or iterates its DataLoader while "
                "its models are in eval mode.",
                advice=ADVICE,
            )

    def before_step(self, optimizer: Any) -> None:
        if not self.growth.new:
            return
        # large_batch chooses the rate's rule together with the optimizer.
        chosen = any(mod.startswith("large_batch=") for mod in self.stage.run.mods)
        rule: Any = self.rule or ("none" if chosen else usual_rule(self.stage, optimizer))
        self.rates.grown = self.growth.new / self.growth.old
        factor = 1.0 if rule == "none" else scale_rate(rule, self.rates.grown)
        self._tell(f"× {factor:.4g} ({rule} rule)" if rule != "none" else "unchanged")
        if factor != 1.0:
            self.rates.scale(optimizer, factor)

    def _tell(self, rate: str) -> None:
        text = f"batch {self.growth.old} → {self.growth.new}, learning rate {rate}"
        if text != self._told:
            self._told = text
            self.stage.pulse.notice(text, mod="batch")


# -- batches of another size ------------------------------------------------------------------------------------------
# For the mods `batch`, `emulate`.
#
# If torch's BatchSampler makes the batches, a BatchSampler of the new size replaces it, over the same sampler. Batches
# from another source (the script's own sampler, a dataset of batches) are joined as a whole.


CONSTANT = (bool, int, float, type(None))  # leaves of a batch that are taken from its first part


class Growth:
    """Which batches change, and to which size. Every worker decides in the same way."""

    def __init__(self, stage: Stage, asked: str) -> None:
        self.stage, self.asked = stage, asked
        self.times = float(asked[1:]) if asked.startswith("x") else 0.0  # 0: not known before the first training batch
        self.old = self.new = 0  # samples of the first training batch, without and with the mod
        self._known: weakref.WeakKeyDictionary[Any, set[bool]] = weakref.WeakKeyDictionary()

    def known(self, loader: Any) -> set[bool]:
        """How a loader (or an iterator's loader) was used so far: {True} for training, {False} not, or both."""
        return self._known.setdefault(loading.known_of(loader), set())

    def is_due(self, known: set[bool]) -> bool:
        """Whether the present iteration is for training. A loader that was used for training is so again, even if the
        script calls `model.train()` only after the first batch."""
        training = self.stage.views.is_training() or (torch.is_grad_enabled() and True in known)
        known.add(due := training and not self.stage.aside)
        return due

    def counts(self, known: set[bool]) -> bool:
        """Whether `len(loader)` means a training loader."""
        return True in known if len(known) == 1 else self.stage.views.is_training() and not self.stage.aside

    def guess(self, old: int, most: int | None = None) -> int:
        """The new size of a batch, before any iteration. `most` is the number of samples in the dataset."""
        wanted = max(1, round(old * (self.times or int(self.asked) / old)))
        return wanted if most is None or most < old else min(wanted, most)

    def size(self, old: int, most: int | None) -> int:
        """The new size of a batch whose size is free to choose."""
        self._meet(old, new := self.guess(old, most))
        return new

    @property
    def many(self) -> int:
        """The number of whole batches in a new one, as far as known."""
        return max(1, round(self.times))

    def whole_batches(self, old: int) -> int:
        """How many batches are joined into one. `old` is the size of the first."""
        times = self.times or int(self.asked) / old
        if round(times) < 1 or (self.asked.startswith("x") and round(times) != times):
            raise ScriptError(
                f"--mod batch={self.asked}: the script makes its batches of {old} samples itself, and these can be "
                "joined, not cut.",
                advice=f"Type a multiple: --mod batch={2 * old}",
            )
        self._meet(old, round(times) * old)
        return self.many

    def _meet(self, old: int, new: int) -> None:
        if not self.new:
            self.old, self.new, self.times = old, new, new / old


class Regrouped:
    """Replaces a loader's batch sampler (`plain`), and decides at each iteration whether to regroup."""

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
        if name == "plain":  # during a copy, before the attributes are set
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
    """Replaces the loader's batch sampler from its next iteration on. DataLoader forbids a plain assignment."""
    if loader.batch_sampler is not None and not isinstance(loader.batch_sampler, Regrouped):
        object.__setattr__(loader, "batch_sampler", Regrouped(loader.batch_sampler, growth, growth.known(loader)))


def grown_length(loader: DataLoader[Any], plain: Callable[[Any], int], growth: Growth) -> int:
    """The loader's length in new batches."""
    count, sampler = plain(loader), loader.batch_sampler
    if not growth.counts(growth.known(loader)):
        return count
    if not isinstance(sampler, Regrouped):
        return -(-count // growth.many)
    if not isinstance(loader.dataset, IterableDataset):
        return count  # the length of the new batch sampler
    samples = len(loader.dataset)  # type: ignore[arg-type]
    size = growth.guess(sampler.plain.batch_size)
    return samples // size if loader.drop_last else -(-samples // size)


def join_more(first: Any, following: Callable[[], Any], growth: Growth, dim: int) -> Any:
    """Joins the dataset's batch `first` with as many following ones as the new batch needs."""
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
        f"The batch size cannot be changed: the dataset makes its own batches, and these cannot be joined: {why}",
        advice="Change the batch size in the script, or leave the mod out.",
    )


def _length(sampler: Iterable[Any]) -> int | None:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
