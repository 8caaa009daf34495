"""Numbers that Python reads inside a call and that all rows decide: `if mask.all()`, `n = mask.sum().item()`.

In a real call each worker reads the whole batch's number, which is made of the workers' own. So a trial on a few rows
reads the number of all rows, too, and takes the whole batch's branch. How a number is made of the workers' own is found
read by read: a trial ends at a read that is not decided, and the operations until there say what kind of number it is.
Any other number that depends on samples ends the proof.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.script.proof.kinds import Kind
from paceline.script.proof.recorder import CannotTry, Recorder, hidden
from paceline.script.rows.crossings import Split
from paceline.torch_private import no_dispatch_modes

WHAT = "a number that the model's code reads"
MOST = 16  # reads that are decided in one proof
OWN = "own"  # what a worker reads of its own rows: the same everywhere, or known without any sample
JOINT = ("sum", "mean", "max", "min")
# How Python reads a number, and what it makes of it.
READERS: dict[str, Callable[[Any], Any]] = {
    "item": lambda value: value,
    "tolist": lambda value: value,
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__index__": operator.index,
}
Take = Callable[[torch.Tensor], Any]


class Undecided(BaseException):
    """Ends a trial at a read of which it is not known how its number is made; no model catches it."""


class OtherBranch(Exception):
    """The whole batch decides otherwise than in the trials."""


@dataclass(slots=True)
class Reads:
    """What is known of the reads of a call that is tried out."""

    may_be_joint: bool = False  # real calls read jointly
    kinds: list[str] = field(default_factory=list)  # how each number is made of the workers' own
    answers: list[Any] = field(default_factory=list)  # the numbers on all rows
    come_first: bool = True  # nothing was changed before the last joint one

    @property
    def are_joint(self) -> bool:
        return any(kind != OWN for kind in self.kinds)

    def begin_with(self, values: list[Any]) -> bool:
        """Whether a call that was tried out has read these numbers first; None stands for a worker's own."""
        pairs = zip(self.answers, values, strict=False)
        return all(value in (None, answer) or value != value for answer, value in pairs)

    def decide(self, kind: str, on_all_rows: Callable[[], list[Any]]) -> None:
        """Decides the first read that is not. `on_all_rows` gives the numbers that the call reads on all rows."""
        if len(self.kinds) == MOST:
            raise CannotTry(f"its Python code reads more than {MOST} numbers")
        self.kinds.append(kind)
        if self.are_joint and len(self.answers) < len(self.kinds):
            self.answers = on_all_rows()

    def given(self) -> Iterator[Any]:
        """What each read of a call gets; NotImplemented for a worker's own."""
        for number, kind in enumerate(self.kinds):
            if kind != OWN and number >= len(self.answers):
                raise CannotTry("its Python code reads other numbers on all rows than on a few")
            yield NotImplemented if kind == OWN else self.answers[number]

    def again(self) -> Take:
        """Gives the decided numbers to a call whose operations are not followed."""
        given = self.given()
        return lambda tensor: next(given, NotImplemented)

    def noted(self, recorder: Recorder, own: set[int], is_untouched: Callable[[], bool]) -> Take:
        """Gives the decided numbers to a trial, and ends it at the first read that is not decided. `own`: the numbers
        of the module's own tensors. `is_untouched`: whether the call has changed nothing yet."""
        given = self.given()

        def take(tensor: torch.Tensor) -> Any:
            for value in given:
                if value is not NotImplemented:
                    self.come_first = self.come_first and is_untouched()
                    recorder.read(JOINT_READ, tensor)
                return value
            if recorder.is_constant(tensor) or recorder.known(tensor) in own:
                self.kinds.append(OWN)
                return NotImplemented
            recorder.read(UNDECIDED_READ, tensor)
            raise Undecided

        return take if self.may_be_joint else lambda tensor: NotImplemented


JOINT_READ, UNDECIDED_READ = "a joint read", "a read"


def how_joint(kind: Kind) -> str:
    """How the number of all rows is made of those of parts; empty if it cannot be."""
    name = "sum" if kind.name == "share" else kind.name
    return name if name in JOINT and kind.dim is None and not (name == "mean" and kind.of) else ""


class JointReads:
    """The reads of a real call in slices: each worker gets the number of the whole batch."""

    def __init__(self, proven: Reads, split: Split) -> None:
        self._proven, self._split = proven, split
        self.values: list[Any] = []  # None for a worker's own

    def take(self, tensor: torch.Tensor) -> Any:
        """Waits for all workers where the number is joint. OtherBranch if all rows decide otherwise than in the
        trials: on all workers at once."""
        number = len(self.values)
        kind = self._proven.kinds[number] if number < len(self._proven.kinds) else OWN
        if kind == OWN:
            self.values.append(None)
            return NotImplemented
        with hidden(), no_dispatch_modes():
            value = _made_of(kind, tensor, self._split)
        self.values.append(value)  # on all workers the same
        if type(value) is bool and value != self._proven.answers[number]:
            raise OtherBranch("the whole batch decides otherwise than in the trials")
        return value

    @property
    def are_proven(self) -> bool:
        return self._proven.begin_with(self.values)


def _made_of(kind: str, tensor: torch.Tensor, split: Split) -> Any:
    """The number of the whole batch. A worker without rows has a borrowed one, which does not count."""
    told = split.group.gather_objects(tensor.detach().item(), WHAT)
    values, sizes = zip(*((value, size) for value, size in zip(told, split.sizes, strict=True) if size), strict=True)
    if any(value != value for value in values):
        return float("nan")
    if kind in ("max", "min"):
        return max(values) if kind == "max" else min(values)
    total = sum(values) if kind == "sum" else sum(v * n for v, n in zip(values, sizes, strict=True)) / split.batch
    return torch.tensor(total, dtype=tensor.dtype, device="cpu").item()


@contextmanager
def taken(take: Take) -> Iterator[None]:
    """Inside, `take` is asked where Python reads a single number in this thread; NotImplemented: the tensor's."""
    thread = threading.get_ident()

    def taking(plain: Callable[..., Any], convert: Callable[[Any], Any]) -> Callable[..., Any]:
        def read(self: torch.Tensor) -> Any:
            if self.numel() != 1 or Recorder.in_norm or threading.get_ident() != thread or _is_apart(sys._getframe(1)):
                return plain(self)
            value = take(self)
            return plain(self) if value is NotImplemented else convert(value)

        return read

    own = {name: vars(torch.Tensor).get(name) for name in READERS}
    for name, convert in READERS.items():
        setattr(torch.Tensor, name, taking(getattr(torch.Tensor, name), convert))
    try:
        yield
    finally:
        for name, plain in own.items():
            if plain is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, plain)


def _is_apart(frame: Any) -> bool:
    """Whether Paceline reads, or what checks the values of a distribution: see `value_checks`."""
    return str(frame.f_globals.get("__name__", "")).startswith(("paceline.", "torch.distributions."))
