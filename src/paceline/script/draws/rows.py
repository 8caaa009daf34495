"""Which rows of the whole batch's draw belong to this worker.

Inside a sliced call a random function is asked for a tensor of the slice. It draws for the whole batch, from the
script's stream, and keeps the worker's rows: numbers and the stream's end are those of one process. A `DrawRule` says
which dimension of the drawn tensor holds rows. The proof finds the rules: it calls the module on the whole batch and on
the slice, and compares the shapes of each draw, by its number in the sequence. A wrong rule changes the result, which
the proof compares as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paceline.script.slicing.crossings import Split, memory_order

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrawRule:
    """Rows along `dim`, `many` of them for each sample; without a `dim`, the draw has no rows (a mask of a weight)."""

    dims: int  # of the drawn tensor
    dim: int | None = None
    many: int = 1
    uneven: int = 0  # the number of the split of its rows: see `Split.rows_of`
    order: tuple[int, ...] = ()  # of the dimensions in memory, on the whole batch

    def fits(self, shape: Shape, split: Split) -> bool:
        rows = max(split.rows_of(self.uneven).mine, 1)
        return len(shape) == self.dims and (self.dim is None or shape[self.dim] == self.many * rows)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw for the whole batch in a dry run."""

    shape: Shape
    order: tuple[int, ...]  # see `memory_order`


@dataclass(frozen=True, slots=True)
class Piece:
    """The place of the worker's rows in the draw of the whole batch."""

    dim: int
    start: int
    size: int
    whole: int
    split: Split  # of the drawn rows
    order: tuple[int, ...] = ()  # of the dimensions of the whole draw, where the memory of one own row does not tell

    def shape(self, own: Sequence[int]) -> Shape:
        """The shape of the whole draw."""
        return (*own[: self.dim], self.whole, *own[self.dim + 1 :])

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The worker's rows, as a view."""
        return whole.narrow(self.dim, self.start, self.size)

    def blank(self, like: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Uninitialised memory for the whole draw, laid out as one process would: kernels draw in memory order."""
        order = self.order or memory_order(like) or tuple(range(like.dim()))
        shape, device = self.shape(like.shape), device or like.device
        return torch.empty_permuted(shape, order, dtype=like.dtype, device=device)


@dataclass(slots=True)
class Position:
    """The current sliced call or dry run, and the number of draws in it so far."""

    split: Split | None = None
    rules: Sequence[DrawRule] = ()
    made: int = 0
    drawn: list[Drawn] | None = None  # dry run of the whole batch
    expected: Sequence[Drawn] | None = None  # dry run of the slice: the draws for the whole batch
    found: list[DrawRule] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)


class Draws:
    """The draws of one worker. `on` is true inside a sliced call and in a dry run."""

    def __init__(self) -> None:
        self.on = False
        self.told: set[str] = set()  # draws that could not be split
        # The worker's own random stream, for these draws.
        self.apart: Callable[[], AbstractContextManager[None]] = nullcontext
        self._at = Position()
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []  # the script's own, met in a dry run

    @property
    def rehearsing(self) -> bool:
        return self._at.drawn is not None or self._at.expected is not None

    @property
    def mine(self) -> bool:
        """Whether the caller belongs to the sliced call: not another thread of the script."""
        return self._at.thread == threading.get_ident()

    def place(self, like: torch.Tensor | Sequence[int], generator: torch.Generator | None = None) -> Piece | None:
        """The place of the next draw, like this tensor or of this shape; None if it is to be drawn as it is."""
        at, shape = self._at, tuple(like.shape if isinstance(like, torch.Tensor) else like)
        if generator is not None and self.rehearsing and not any(known is generator for known, _ in self._generators):
            self._generators.append((generator, generator.get_state()))
        number, at.made = at.made, at.made + 1
        if at.drawn is not None:
            at.drawn.append(Drawn(shape, memory_order(like) if isinstance(like, torch.Tensor) else ()))
        if at.split is None:
            return None
        rule = self._rule(number, shape, at.split)
        if at.expected is not None:
            at.found.append(rule)
        if rule.dim is None:
            return None
        split = at.split.rows_of(rule.uneven).times(rule.many)
        start, size = (split.start, split.mine) if split.mine else (0, rule.many)  # row 0 is the borrowed one
        return Piece(rule.dim, start, size, split.batch, split, rule.order if shape[rule.dim] == 1 else ())

    def _rule(self, number: int, shape: Shape, split: Split) -> DrawRule:
        rows = max(split.mine, 1)
        if self._at.expected is not None and number < len(self._at.expected):
            whole = self._at.expected[number]
            return replace(rule_of(shape, whole.shape, split), order=whole.order)
        rules = self._at.rules
        if number < len(rules) and rules[number].fits(shape, split):
            return rules[number]
        # Another number of draws than in the proof: a model that skips layers at random.
        for rule in rules:
            if rule.dim is not None and rule.fits(shape, split):
                return rule
        if shape and shape[0] % rows == 0 and shape[0]:
            return DrawRule(len(shape), 0, shape[0] // rows)
        return DrawRule(len(shape))

    # -- where a draw is made ---------------------------------------------------------------------------------------

    def where(self) -> tuple[bool, Position]:
        """The position in the sequence of draws, for a recomputation in backward."""
        return self.on, replace(self._at)

    @contextmanager
    def at(self, on: bool, position: Position) -> Iterator[Position]:
        """Draws from this position on, during the block."""
        before = self.on, self._at
        self.on, self._at = on, replace(position, thread=threading.get_ident())
        try:
            yield self._at
        finally:
            self.on, self._at = before

    def in_call(self, split: Split, rules: Sequence[DrawRule]) -> Any:
        """A sliced call."""
        return self.at(True, Position(split, rules))

    @contextmanager
    def rehearsal(self, split: Split | None, expected: Sequence[Drawn]) -> Iterator[Position]:
        """A dry run: of the slice, if there is a split, else of the whole batch."""
        position = Position(drawn=[]) if split is None else Position(split, expected=expected)
        try:
            with self.at(True, position) as at:
                yield at
        finally:
            while self._generators:
                generator, state = self._generators.pop()
                generator.set_state(state)


def rule_of(part: Shape, whole: Shape, split: Split) -> DrawRule:
    """The rule of a draw whose shapes on the slice and on the whole batch are known."""
    for number in range(len(split.uneven) + 1):
        rule = _rule_of(part, whole, split.rows_of(number))
        if rule.dim is not None:
            return replace(rule, uneven=number)
    return DrawRule(len(part))


def _rule_of(part: Shape, whole: Shape, split: Split) -> DrawRule:
    if len(part) == len(whole):
        differing = [d for d in range(len(whole)) if part[d] != whole[d]]
        if len(differing) == 1 and split.batch and whole[differing[0]] % split.batch == 0:
            dim, many = differing[0], whole[differing[0]] // split.batch
            if part[dim] == many * max(split.mine, 1):
                return DrawRule(len(part), dim, many)
    return DrawRule(len(part))
