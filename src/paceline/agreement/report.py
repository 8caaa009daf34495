"""Finds and describes the difference between workers whose digests differ, and decides whether it is rounding.

All gradients are averaged, and a sum over workers has the same bits on each of them. So weights stay equal bit by bit
if the workers compute the rest of an update identically. They may not: different processors, different numbers of
threads (the order of a sum, in a clipped norm), or GPU kernels without a fixed order may round the last digit
differently. Such differences add up like a random walk, because the next gradient is common to all workers again:

    ‖difference‖ ≤ ε · (1 + √steps) · ‖weight‖         ε: the spacing of the type's numbers at 1

A difference below that bound, and below 1 %, gets one notice. A larger one is not rounding and stops the run; so does
an integer that differs. Arguments are compared by a projection onto random numbers (`digest.Described`).

Every worker calls this at the same message, and all workers reach the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.agreement.digest import Described, digest, parts
from paceline.agreement.ledger import Ledger, LedgerEntry, signed
from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.script.seams.stage import Stage

if TYPE_CHECKING:
    import weakref

    from paceline.agreement.watched import Look, Watched

MOST = 1e-2  # of a weight's norm: more is never rounding
LITTLE = 1e-2  # of the model's RMS weight: the least scale to which a weight near zero is compared
WEIGHTS_ADVICE = (
    "Something in the update differs from worker to worker: a learning rate, noise on gradients or new weights that "
    "depend on the time, the process or a generator without a seed. Seed it, or compute it from values that all "
    "workers share."
)
ARGUMENTS_ADVICE = (
    "Every worker must hold the same batch: look for a shuffle or an augmentation without a seed, for the order of a "
    "set or of os.listdir, or for the time. Seed or sort it."
)
SEEDS_ADVICE = (
    "A seed from the time, the process or the operating system differs on each worker. Set a fixed number, or set no "
    "seed: a run starts all workers from the same seed (--seed)."
)


class Differing:
    """The examination of differences on one worker."""

    def __init__(
        self,
        stage: Stage,
        models: weakref.WeakKeyDictionary[nn.Module, Watched],
        of_weights: Sequence[Ledger],
        group: Group,
    ) -> None:
        self.stage, self.group, self.models, self._of_weights = stage, group, models, of_weights
        self._told: set[str] = set()

    def look(self, ledger: Ledger, steps: int) -> None:
        """PartedError if the workers' ledgers differ by more than rounding."""
        entry, equal = self._first(ledger)
        if entry is None:
            return
        if isinstance(entry.about, str):
            raise self._seeds(entry.about)
        if entry.about.arguments or entry.about.plain:
            self._arguments(entry.about)
        else:
            self._weights(entry.about, equal, steps)

    def _first(self, ledger: Ledger) -> tuple[LedgerEntry | None, list[LedgerEntry]]:
        """The first entry that differs, and the entries before it, which are equal."""
        mine = torch.tensor([signed(entry.digest) for entry in ledger.entries], dtype=torch.int64, device="cpu")
        table = self.group.gather_vectors(mine, "the digests of weights")
        columns = (table != table[0]).any(0).nonzero().flatten().tolist()
        if not columns:
            return None, []
        return ledger.entries[columns[0]], ledger.entries[: columns[0]]

    # -- weights ---------------------------------------------------------------------------------------------------

    def _weights(self, look: Look, equal: list[LedgerEntry], steps: int) -> None:
        models = {w.number: (module, w) for module, w in self.models.items() if w.number in look.models}
        common = set(models).intersection(*self.group.gather_objects(sorted(models), "the models that differ"))
        weights = [named for number in sorted(common) for named in models[number][1].weights(models[number][0])]
        scale = _usual(weights)
        worst, where = 0.0, ""
        for name, tensor in self._differing(weights):
            relative, place = self._distance(name, tensor, scale)
            if relative > _rounding(tensor.dtype, steps):
                raise PartedError(f"{self._since(look, equal)}: {place}.{_after(look)}", advice=WEIGHTS_ADVICE)
            if relative > worst:
                worst, where = relative, name
        if not where:
            names = ", ".join(models[number][1].name for number in sorted(common)) or "a model"
            self._tell(
                "for a while",
                f"The weights of {names} differed between the workers at {look.line}, and are equal again: the script "
                f"changes them temporarily, in a way that differs from worker to worker.",
            )
        else:
            self._tell(
                "weights",
                f"The workers' weights differ by rounding, at most {worst:.0e} (relative, in {where}): the workers do "
                f"not compute updates bit for bit equally (different processors, numbers of threads or GPU kernels).",
            )

    def _differing(self, weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """The weights that are not equal bit by bit on all workers."""
        mine = [[name, str(tuple(t.shape)), str(t.dtype), *_bits(t)] for name, t in weights]
        first, *others = self.group.gather_objects(mine, "the weights that differ")
        for rank, other in enumerate(others, 1):
            if [row[1:3] for row in other] != [row[1:3] for row in first]:
                pairs = [*zip(first, other, strict=False)]
                one, two = next(((a, b) for a, b in pairs if a[1:3] != b[1:3]), (first[-1:], other[-1:]))
                raise PartedError(
                    f"The workers hold different models: worker 0 has {' '.join(map(str, one[:3]))}, worker {rank} "
                    f"{' '.join(map(str, two[:3]))}.",
                    advice=WEIGHTS_ADVICE,
                )
        return [named for i, named in enumerate(weights) if any(other[i][1:] != first[i][1:] for other in others)]

    def _distance(self, name: str, tensor: torch.Tensor, usual: float) -> tuple[float, str]:
        """The largest relative difference from rank 0's values, and a text about the first element that differs."""
        mine = _numbers(tensor)
        theirs = mine.clone()
        self.group.broadcast(theirs, "a weight that differs")
        same = (mine == theirs) | (mine.isnan() & theirs.isnan())
        gap = torch.where(same, torch.zeros_like(mine), mine - theirs).double()
        size = max(float(theirs.double().norm()), LITTLE * usual * math.sqrt(max(1, mine.numel())))
        relative = float(gap.norm()) / size if size else float("inf")
        relative = 0.0 if bool(same.all()) else relative if math.isfinite(relative) else 1e30
        first = float(same.logical_not().flatten().nonzero().min()) if relative else float("inf")
        facts = torch.tensor([relative, first, float(mine.double().norm())], dtype=torch.float64, device="cpu")
        table = self.group.gather_vectors(facts, "a weight that differs")
        at = int(table[:, 1].min()) if bool(table[:, 1].isfinite().any()) else 0
        value = mine.flatten()[at : at + 1].double().cpu()
        values = self.group.gather_vectors(value, "a weight that differs").flatten().tolist()
        return float(table[:, 0].max()), _place(name, mine.shape, at, values, table[:, 2].tolist())

    def _since(self, look: Look, equal: list[LedgerEntry]) -> str:
        """The first part of the message: the steps between which the workers began to differ."""
        looks = [*equal, *(ledger.last for ledger in self._of_weights if ledger.last is not None)]
        steps = [entry.about.step for entry in looks if set(entry.about.models) & set(look.models)]
        return f"The workers' weights differ after step {look.step}" + (
            f" (equal at step {max(steps)})" if steps else ""
        )

    # -- arguments and seeds ---------------------------------------------------------------------------------------

    def _arguments(self, look: Look) -> None:
        told = self.group.gather_objects(
            [look.plain, [list(argument.fetched()) for argument in look.arguments]], "arguments that differ"
        )
        name = next((w.name for w in self.models.values() if w.number in look.models), "a model")
        where = f"{name}, called at {look.line} after step {look.step}"
        texts = [text for text, _ in told]
        if len(set(texts)) > 1:
            rank = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise PartedError(
                f"The arguments of {where}, differ between the workers: worker 0 has {_short(texts[0])}, "
                f"worker {rank} {_short(texts[rank])}.",
                advice=ARGUMENTS_ADVICE,
            )
        for column in zip(*(rows for _, rows in told), strict=True):
            first, *others = (Described(*row) for row in column)
            if not all(other.is_like(first) for other in others):
                shown = [one.value or one.norm for one in (first, *others)]
                what = "norm" if first.value is None else "value"
                numbers = f" ({what}: {by_worker(shown)})" if len(set(shown)) > 1 else ""
                raise PartedError(
                    f"The batches differ between the workers: {first.name} of {where}, differs{numbers}.",
                    advice=ARGUMENTS_ADVICE,
                )
            if any(other.digest != first.digest for other in others):
                self._tell("batches", f"The workers' batches differ by rounding: {first.name} of {where}.")

    def _seeds(self, about: str) -> PartedError:
        told = self.group.gather_objects(about, "the seeds")
        return PartedError(
            "The seeds that the script sets differ between the workers: "
            + ", ".join(f"worker {r} {t}" for r, t in enumerate(told)),
            advice=SEEDS_ADVICE,
        )

    def _tell(self, kind: str, text: str) -> None:
        """Sends a notice, once for each kind."""
        if kind not in self._told:
            self._told.add(kind)
            self.stage.pulse.notice(text)


def _rounding(dtype: torch.dtype, steps: int) -> float:
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return min(torch.finfo(dtype).eps * (1 + math.sqrt(steps)), MOST)


def _usual(weights: list[tuple[str, torch.Tensor]]) -> float:
    """The root mean square of all floating-point weights."""
    floats = [tensor.detach() for _, tensor in weights if tensor.is_floating_point() and parts(tensor)]
    count = sum(tensor.numel() for tensor in floats)
    square = sum(float(_numbers(tensor).double().square().sum()) for tensor in floats)
    return math.sqrt(square / count) if count and math.isfinite(square) else 0.0


def _bits(tensor: torch.Tensor) -> list[int]:
    return [int(number) for number in digest([tensor])]


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values as a dense tensor that can be subtracted and sent."""
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    return tensor if tensor.dtype == torch.float32 else tensor.to(torch.float64)


def _place(name: str, shape: torch.Size, at: int, values: Sequence[float], norms: Sequence[float]) -> str:
    index = [int(i) for i in torch.unravel_index(torch.tensor(at, device="cpu"), shape)] if len(shape) else []
    where = f"{name}{index}" if index else name
    return f"{where} is {by_worker(values)} (norm of {name}: {by_worker(norms)})"


def by_worker(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.9g} on worker {rank}" for rank, value in enumerate(values))


def _after(look: Look) -> str:
    return f" The last update was at {look.updated}." if look.updated else ""


def _short(text: str) -> str:
    return text if len(text) < 300 else text[:300] + " …"
