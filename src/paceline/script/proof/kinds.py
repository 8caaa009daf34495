"""Kinds: what a tensor of a call on all rows (A) has to do with those of calls on some rows (B) and on the others (C).

    rows    B and C hold A's rows, along `dim` (dim is None: all three hold the same, as a weight does)
    sum     A = B + C, as a weight's gradient
    max     A is the maximum of B and C (of flags: any), as a longest length; min: the minimum (of flags: all)
    mean    A is the mean of B and C, weighted by their numbers of rows, as a loss
    average the same, weighted by the targets that count: torch's cross-entropy
    share   B and C are A times their share of the rows (and A's rows, if there is a `dim`): a count of rows, the
            gradient of a mean
    place   depends on the number of rows, and on no sample, as arange(len(x))
    index   rows of numbers that count from a part's own first row, as the nodes of graphs
    mixed   none of these: depends on other samples, on a row's place, or on the number of rows

Dimension `dim` counts `outer` × rows × inner entries. `of` is the number of a measure: a batch of graphs has as many
rows as graphs (0), or as nodes or edges of a type (see `graphs`); more are those that a mask chooses of them
(`links[:, mask]`), and those of several measures one after another (`cat([links, loops], 1)`). A mean has the measure
over whose rows it is taken. The `of` of an average is its number in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Shape = Sequence[int]


class Kind(NamedTuple):
    name: str
    dim: int | None = None
    outer: int = 1
    of: int = 0

    @property
    def is_same(self) -> bool:
        """Whether A, B and C hold the same."""
        return self.name == "rows" and self.dim is None

    @property
    def is_rows(self) -> bool:
        """Whether the tensor has a part for each row."""
        return self.name == "rows" and self.dim is not None

    @property
    def varies(self) -> bool:
        """Whether the tensor depends on all rows, or on their number."""
        return self.name not in ("rows", "index")


SAME, MIXED, PLACE, SUM, MEAN, AVERAGE, SHARE = map(Kind, ("rows", "mixed", "place", "sum", "mean", "average", "share"))
MAX, MIN = map(Kind, ("max", "min"))


def rows(dim: int, outer: int = 1, of: int = 0) -> Kind:
    return Kind("rows", dim, outer, of)


@dataclass(frozen=True, slots=True)
class Parts:
    """The numbers of rows of A, B and C, for each measure. B has A's first rows, and C the others; of a measure that is
    several `joined`, the first ones of each."""

    sizes: tuple[tuple[int, int, int], ...]
    joined: tuple[tuple[int, tuple[int, ...]], ...] = ()  # numbers of measures, and of those that they consist of

    @classmethod
    def of(cls, whole: int, first: int) -> Parts:
        return cls(((whole, first, whole - first),))

    def along(self, a: Shape, b: Shape, c: Shape) -> Kind | None:
        """By shapes alone: rows along the dimension in which they differ, or the same; None if neither."""
        if not len(a) == len(b) == len(c):
            return None
        differing = [dim for dim in range(len(a)) if not a[dim] == b[dim] == c[dim]]
        if not differing:
            return SAME
        if len(differing) == 1:
            dim = differing[0]
            found = a[dim], b[dim], c[dim]
            if found in self.sizes:  # … before several rows of another measure, as many by chance
                return rows(dim, 1, self.sizes.index(found))
            for of, (whole, first, last) in enumerate(self.sizes):
                many = a[dim] // whole if whole else 0
                if many and found == (many * whole, many * first, many * last):
                    return rows(dim, 1, of)
        return None

    def and_measure(self, rows: tuple[int, int, int], joined: tuple[int, ...] = ()) -> tuple[Parts, int]:
        """With another measure; and its number."""
        for number, known in enumerate(self.sizes):
            if known == rows and dict(self.joined).get(number, ()) == joined:
                return self, number
        number = len(self.sizes)
        return Parts((*self.sizes, rows), (*self.joined, *([(number, joined)] if joined else []))), number

    def _pieces(self, of: int, part: int) -> list[tuple[int, int]]:
        """Where B's or C's rows are in A: starts and lengths."""
        found, start = [], 0
        for whole, first, last in self._consists_of(of):
            found.append((start, first) if part == 1 else (start + first, last))
            start += whole
        return found

    def _consists_of(self, of: int) -> list[tuple[int, int, int]]:
        parts = dict(self.joined).get(of, ())
        return [one for part in parts for one in self._consists_of(part)] if parts else [self.sizes[of]]

    def cut(self, tensor: torch.Tensor, kind: Kind, part: int) -> torch.Tensor:
        """The rows of B (1) or C (2) of a tensor of A."""
        if kind.dim is None or not part:
            return tensor
        whole, dim = self.sizes[kind.of][0], kind.dim
        apart = tensor.unflatten(dim, (kind.outer, whole, tensor.shape[dim] // (whole * kind.outer)))
        taken = torch.cat([apart.narrow(dim + 1, *piece) for piece in self._pieces(kind.of, part)], dim + 1)
        return taken.flatten(dim, dim + 2)

    def share(self, part: int, of: int = 0) -> float:
        return self.sizes[of][part] / self.sizes[of][0]

    def judge(
        self, found: Sequence[torch.Tensor], equal: Callable[[Any, Any], bool], outers: Collection[int] = ()
    ) -> Kind:
        """The kind of a tensor of which all three values are known. `outers`: of the tensors that it was computed from:
        equal numbers do not tell it."""
        a, b, c = found
        kind = self.along(a.shape, b.shape, c.shape)
        if kind is None:
            return MIXED
        if kind.dim is None:
            return self._judge_whole(a, b, c, equal)
        many = a.shape[kind.dim] // self.sizes[kind.of][0]
        fits: list[Kind] = []
        for outer in [n for n in range(1, many + 1) if many % n == 0]:
            tried = kind._replace(outer=outer)
            parts = [self.cut(a, tried, part) for part in (1, 2)]
            if equal(parts[0], b) and equal(parts[1], c):
                fits.append(tried)
                continue
            if fits:
                continue
            if a.is_floating_point() or a.is_complex():
                if all(equal(part * self.share(i, kind.of), t) for i, part, t in ((1, parts[0], b), (2, parts[1], c))):
                    return tried._replace(name="share")
            elif len(self.sizes) > 1 and all(
                _counts_from(part, t, kind.dim) for part, t in zip(parts, (b, c), strict=True)
            ):
                return tried._replace(name="index")
        if len(fits) > 1 and outers:
            fits = [one for one in fits if one.outer in outers]
        return fits[0] if fits else MIXED

    def _judge_whole(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, equal: Callable[[Any, Any], bool]
    ) -> Kind:
        if equal(a, b) and equal(a, c):
            return SAME
        if a.dtype is torch.bool:
            return MIXED
        a, b, c = (t if t.is_complex() else t.double() for t in (a, b, c))
        for of in range(len(self.sizes)):
            if equal(a * self.share(1, of), b) and equal(a * self.share(2, of), c):
                return SHARE._replace(of=of)
        if equal(a, b + c):
            return SUM
        for of, (_, first, last) in enumerate(self.sizes):
            if equal(a * (first + last), b * first + c * last):
                return MEAN._replace(of=of)
        return MIXED


def _counts_from(whole: torch.Tensor, part: torch.Tensor, dim: int) -> bool:
    """Whether the numbers of a part are those of the whole, counted from another start: one for all rows, along `dim`,
    and one for each of both ends of links."""
    if whole.dtype is not torch.int64 or whole.shape != part.shape or not whole.numel():
        return False
    return bool(((whole - part) == (whole - part).narrow(dim, 0, 1)).all())
