"""Parts of a batch that one process computes one after the other: their sizes, and the whole output from theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.script.proof.plan import Role, SlicePlan
from paceline.script.proof.recorder import CannotTry
from paceline.script.rows.crossings import Split
from paceline.script.slicing.loss_denominators import Averages


def sizes_of(batch: int, parts: int) -> list[int]:
    """Sizes of the parts, which differ by one at most. None is empty, unless the batch is."""
    n = max(1, min(batch, parts))
    return [batch * (i + 1) // n - batch * i // n for i in range(n)]


@dataclass(frozen=True, slots=True)
class Turn:
    """A micro-batch in the place of a worker: `Split` asks only for its number and for how many there are."""

    rank: int
    world: int

    def gather_rows(self, *_: Any) -> Any:
        raise CannotTry("it draws random numbers whose count depends on all rows")


def within(slices: Sequence[int], rank: int, chunks: int, turn: int) -> Split:
    """A micro-batch of a worker's slice, as a part of the whole batch: whose rows' random numbers it draws."""
    each = [sizes_of(size, chunks) for size in slices]
    flat = tuple(size for sizes in each for size in sizes)
    at = Turn(sum(map(len, each[:rank])) + turn, len(flat))
    return Split(at, flat)  # type: ignore[arg-type]


def weights_of(
    column: Sequence[Any], number: int, plan: SlicePlan, sizes: Sequence[int], averages: Averages, before: int = 0
) -> torch.Tensor | None:
    """How much each part counts in this leaf of the output: rows in a mean, targets in an average. None of a leaf with
    rows, or of one that all parts have. `before`: averages taken before the first part. CannotTry if the number of
    targets is not known."""
    role = plan.outputs[number]
    if role.kind in ("rows", "same"):
        return None
    if role.kind != "average":
        each = [1] * len(sizes) if role.kind == "sum" else sizes
        return torch.tensor(each, dtype=torch.float64, device="cpu")
    divisors = [
        averages.divisor(value, before + part * plan.averages + role.average) for part, value in enumerate(column)
    ]
    if averages.count - before != len(column) * plan.averages or None in divisors:
        raise CannotTry(
            "it returns a mean over targets whose number is not seen (compiled, or not torch.nn.functional's)"
        )
    return torch.stack([divisor for divisor in divisors if divisor is not None]).to(torch.float64)


def factors_of(role: Role, weights: torch.Tensor) -> torch.Tensor:
    """By what the parts' values are multiplied in the sum that is the whole's. NaN without any target, as the mean."""
    return weights if role.kind == "sum" else weights / weights.sum()


def joined(column: Sequence[Any], role: Role, sizes: Sequence[int], weights: torch.Tensor | None) -> Any:
    """A leaf of the output, from those of the parts."""
    first = column[0]
    if role.kind == "rows":
        if not role.spread:
            return torch.cat(list(column), role.dim)
        apart = [piece.unflatten(role.dim, (-1, size)) for piece, size in zip(column, sizes, strict=True)]
        return torch.cat(apart, role.dim + 1).flatten(role.dim, role.dim + 1)
    if weights is None:
        return first
    factors = factors_of(role, weights)
    if not isinstance(first, torch.Tensor):
        return sum(column) if role.kind == "sum" else sum(v * f for v, f in zip(column, factors.tolist(), strict=True))
    values = torch.stack(list(column))
    if role.kind == "sum":
        return values.sum(0, dtype=first.dtype)
    exact = torch.float64 if first.dtype is torch.float64 else torch.float32
    factors = factors.to(first.device, exact).view(-1, *[1] * first.dim())
    # Without any target, a part's mean is NaN.
    return torch.where(factors == 0, 0, values.to(exact) * factors).sum(0).to(first.dtype)
