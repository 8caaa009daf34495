"""Which rows of the whole batch's draw belong to this worker.

Inside a sliced call a random function is asked for a tensor of the slice. It draws for the whole batch, from the
script's stream, and keeps the worker's rows: numbers and the stream's end are those of one process. A `DrawRule` says
which dimension of the drawn tensor holds rows. The proof finds the rules, by the shapes of each draw in trials on some
rows; a call that draws otherwise than in its proof is computed anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from paceline.script.rows.crossings import Split, memory_order
from paceline.torch_private import no_dispatch_modes

Shape = tuple[int, ...]
INDEX = torch.int64


@dataclass(frozen=True, slots=True)
class DrawRule:
    """Rows along `dim`, one or several for each sample; without a `dim`, the draw has no rows (a mask of a weight)."""

    dims: int  # of the drawn tensor
    dim: int | None = None
    uneven: int = 0  # the number of the split of its rows: see `Split.rows_of`
    order: tuple[int, ...] = ()  # of the dimensions in memory, on the whole batch

    def fits(self, shape: Shape, split: Split) -> bool:
        rows = max(split.rows_of(self.uneven).mine, 1)
        return len(shape) == self.dims and (self.dim is None or shape[self.dim] % rows == 0)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw for the whole batch in a dry run."""

    shape: Shape
    order: tuple[int, ...]  # see `memory_order`
    numbers: torch.Tensor | None = field(
        default=None, compare=False
    )  # drawn integers, by which a tensor may be indexed


class Piece(NamedTuple):
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
    """The current sliced call or trial, and the number of draws in it so far."""

    split: Split | None = None
    rules: Sequence[DrawRule] = ()
    strict: bool = True  # a draw without a rule is an error; else (under mods) it is drawn as it is
    made: int = 0
    drawn: list[Drawn] | None = None  # of a trial
    expected: Sequence[Drawn] = ()  # of a trial on a part of the rows: the draws of that on all
    by_shape: bool = False  # compiled code makes draws of its own among these: not known by their order
    pieces: dict[tuple[int, Shape], Piece | None] = field(default_factory=dict)  # by number and shape of a draw
    thread: int = field(default_factory=threading.get_ident)


class AstrayError(Exception):
    """A call draws other random numbers than in its proof."""


class Draws:
    """The draws of one worker. `on` is true inside a sliced call and in a trial."""

    def __init__(self) -> None:
        self.on = False
        self.told: set[str] = set()  # draws that could not be split
        self.numpy_draws = 0  # made so far
        self.met = 0  # draws of compiled code that were placed
        self.missed = ""  # why one could not be
        # The worker's own random stream, for these draws.
        self.apart: Callable[[], AbstractContextManager[None]] = nullcontext
        self.may_be_split: Callable[[], bool] = lambda: True
        self._at = Position()
        self._last: tuple[Any, ...] = (None, None, {})  # rules and split of the last call, and the pieces met there
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []  # the script's own, met in a trial

    @property
    def rehearsing(self) -> bool:
        return self._at.drawn is not None

    @property
    def mine(self) -> bool:
        """Whether the caller belongs to the sliced call: not another thread of the script."""
        return self._at.thread == threading.get_ident()

    @property
    def is_complete(self) -> bool:
        """Whether the call has made all draws of its proof."""
        return self._at.by_shape or self._at.made == len(self._at.rules)

    @property
    def own_rows(self) -> int | None:
        """The number of rows that a sliced call under way has; None outside of one."""
        return None if self._at.split is None or self.rehearsing else max(self._at.split.mine, 1)

    def rule_by_shape(self, shape: Sequence[int]) -> DrawRule | None:
        """The rule of all draws of the call that may have this shape; None if there is not exactly one."""
        split = self._at.split
        assert split is not None
        rules = {replace(rule, order=()) for rule in self._at.rules if rule.fits(tuple(shape), split)}
        rule = next(iter(rules)) if len(rules) == 1 else None
        return rule if rule is not None and not rule.uneven else None

    def place(
        self, like: torch.Tensor | Sequence[int], generator: torch.Generator | None = None, *, numpy: bool = False
    ) -> Piece | None:
        """The place of the next draw, like this tensor or of this shape; None if it is to be drawn as it is. `numpy`:
        its numbers are not seen as operations, so a trial on a part of the rows gets those of its rows."""
        at, shape = self._at, tuple(like.shape if isinstance(like, torch.Tensor) else like)
        number, at.made = at.made, at.made + 1
        self.numpy_draws += numpy
        if at.drawn is not None:
            if generator is not None and not any(known is generator for known, _ in self._generators):
                self._generators.append((generator, generator.get_state()))
            at.drawn.append(Drawn(shape, memory_order(like) if isinstance(like, torch.Tensor) else ()))
            if at.split is None or not numpy or number >= len(at.expected):
                return None
            whole = at.expected[number]
            return _piece(rule_of(shape, whole.shape, at.split, whole.order), shape, at.split)
        if at.split is None:
            return None
        if (number, shape) in at.pieces:
            return at.pieces[number, shape]
        if at.by_shape:
            if (rule := self.rule_by_shape(shape)) is None:
                raise AstrayError("it draws random numbers beside compiled code, of which the rows are not known")
        elif number < len(at.rules) and at.rules[number].fits(shape, at.split):
            rule = at.rules[number]
        elif at.strict:
            raise AstrayError("it draws other random numbers than when it was tried out")
        else:
            return None
        piece = at.pieces[number, shape] = _piece(rule, shape, at.split)
        return piece

    def settle(self, made: Any, number: int) -> Any:
        """The result of a draw, before which `number` draws were made. In a trial on a part of the rows, integers
        become those that the trial on all rows drew for them: what an index of such chooses is found by values."""
        at = self._at
        is_one = at.drawn is not None and at.made == number + 1  # a kernel may draw nothing, or in another way
        if not is_one or not isinstance(made, torch.Tensor) or made.dtype is not INDEX:
            return made
        assert at.drawn is not None
        with no_dispatch_modes():
            if at.split is None:
                at.drawn[number] = replace(at.drawn[number], numbers=made.detach().clone())
            elif number < len(at.expected) and (numbers := at.expected[number].numbers) is not None:
                piece = _piece(rule_of(made.shape, numbers.shape, at.split), made.shape, at.split)
                if piece is not None:
                    made.copy_(piece.of(numbers))
        return made

    @property
    def made(self) -> int:
        """The number of draws made so far in the call or trial."""
        return self._at.made

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

    def in_call(
        self, split: Split, rules: Sequence[DrawRule], *, strict: bool = True, made: int = 0, by_shape: bool = False
    ) -> Any:
        """A sliced call, or what is left of one after so many draws."""
        if rules is not self._last[0] or split != self._last[1]:
            self._last = rules, split, {}
        return self.at(True, Position(split, rules, strict, made, by_shape=by_shape, pieces=self._last[2]))

    def after(self, made: int) -> Any:
        """The sliced call under way, of which so many draws were made elsewhere."""
        return self.at(self.on, replace(self._at, made=made))

    @contextmanager
    def rehearsal(self, split: Split | None = None, expected: Sequence[Drawn] = ()) -> Iterator[Position]:
        """A trial: of a part of the rows, if there is a split, else of all."""
        try:
            with self.at(True, Position(split, drawn=[], expected=expected)) as at:
                yield at
        finally:
            while self._generators:
                generator, state = self._generators.pop()
                generator.set_state(state)


def _piece(rule: DrawRule, shape: Shape, split: Split) -> Piece | None:
    if rule.dim is None:
        return None
    split = split.rows_of(rule.uneven)
    many = shape[rule.dim] // max(split.mine, 1)
    split = split.times(many)
    start, size = (split.start, split.mine) if split.mine else (0, many)  # row 0 is the borrowed one
    return Piece(rule.dim, start, size, split.batch, split, rule.order if shape[rule.dim] == 1 else ())


def rules_of(part: Sequence[Drawn], whole: Sequence[Drawn], split: Split) -> list[DrawRule]:
    """The rules of draws that were made for the slice and for the whole batch."""
    return [rule_of(own.shape, of.shape, split, of.order) for own, of in zip(part, whole, strict=True)]


def rule_of(part: Shape, whole: Shape, split: Split, order: tuple[int, ...] = ()) -> DrawRule:
    """The rule of a draw whose shapes on the slice and on the whole batch are known. `order`: see `DrawRule`."""
    for number in range(len(split.uneven) + 1):
        rule = _rule_of(part, whole, split.rows_of(number))
        if rule.dim is not None:
            return replace(rule, uneven=number, order=order)
    return DrawRule(len(part), order=order)


def _rule_of(part: Shape, whole: Shape, split: Split) -> DrawRule:
    if len(part) == len(whole):
        differing = [d for d in range(len(whole)) if part[d] != whole[d]]
        if len(differing) == 1 and split.batch and whole[differing[0]] % split.batch == 0:
            dim, many = differing[0], whole[differing[0]] // split.batch
            if part[dim] == many * max(split.mine, 1):
                return DrawRule(len(part), dim)
    return DrawRule(len(part))
