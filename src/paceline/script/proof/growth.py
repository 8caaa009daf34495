"""Whether a module does to all rows what it does to a few.

A trial on 5 rows says nothing of `y[:8]`, of `torch.arange(len(y)) < 8`, or of `0.5 if len(y) > 8 else 1.0`. So the
call is made on 2, on 5 and on all rows, and not walked back. It must make the same operations each time; sizes and
numbers must grow evenly with the rows, or not at all; and what depends on no sample (a mask, a count) must grow evenly
as well, or be the same for every row. Two numbers of rows say how something grows, the third whether it goes on so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from paceline.script import tree
from paceline.script.draws.rows import Draws
from paceline.script.proof import surroundings
from paceline.script.proof.recorder import LAYOUT, Recorder, is_counted_name, leaves_in, script_line
from paceline.torch_private import DispatchMode, changes_arguments, writes_to

KEPT = 1 << 20  # elements of a constant that is looked at
NUMBERS = (bool, int, float, str, torch.dtype, type(None))
NEW = ("empty", "new_empty")


@dataclass(slots=True)
class Step:
    """An operation: its numbers, the sizes of its results, and the tensors it gets that depend on no sample."""

    name: str
    line: str
    counts: bool  # as an operation of the model, and not as a view
    numbers: list[Any]
    shapes: list[tuple[int, ...]]
    constants: list[torch.Tensor | None]


class Steps(DispatchMode):
    """Lists the operations of a call. `samples`: the arguments, the weights and all other tensors of the module."""

    def __init__(self, draws: Draws, samples: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.found: list[Step] = []
        self.memory: dict[Any, Any] = {}
        self.told = ""
        self._draws = draws
        self._copies = WeakIdKeyDictionary()  # of constants, with the version of each
        self._depends = WeakIdKeyDictionary()  # tensors that depend on samples, on weights or on chance
        for tensor in samples:
            self._depends[tensor] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = list(leaves_in((*args, *kwargs.values())))
        constants = [leaf for leaf in given if isinstance(leaf, torch.Tensor) and not self._is_dependent(leaf)]
        step = Step(name, "", is_counted_name(func), [v for v in given if isinstance(v, NUMBERS)], [], [])
        if self._draws.on and not Recorder.in_norm and name not in LAYOUT:
            step.line, step.constants = script_line(), list(map(self._kept, constants))
            self.found.append(step)
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        made = func(*args, **kwargs)
        outs = [leaf for leaf in leaves_in((made,)) if isinstance(leaf, torch.Tensor)]
        step.shapes = [tuple(out.shape) for out in outs]
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if len(constants) < len(tensors) or is_random or (name.startswith(NEW) and not changes_arguments(func)):
            changed = [t for t in writes_to(func, args, kwargs) if t is not None] if changes_arguments(func) else []
            for tensor in (*outs, *changed):
                self._depends[tensor] = True
                if tensor._base is not None:
                    self._depends[tensor._base] = True
        return made

    def end(self, output: Any, memory: dict[Any, Any], told: str) -> None:
        """What the call returned, which values it has changed, and what it wrote."""
        self.memory, self.told = memory, told
        leaves = tree.leaves(output)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = [self._kept(leaf) for leaf in tensors if not self._is_dependent(leaf)]
        numbers = [leaf for leaf in leaves if isinstance(leaf, NUMBERS)]
        self.found.append(Step("its output", "", True, numbers, [tuple(t.shape) for t in tensors], constants))

    def _is_dependent(self, tensor: torch.Tensor) -> bool:
        base = tensor._base
        return tensor in self._depends or (base is not None and base in self._depends)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.numel() > KEPT:
            return None
        version = 0 if tensor.is_inference() else tensor._version
        found = self._copies.get(tensor)
        if found is None or found[0] != version:
            found = self._copies[tensor] = (version, tensor.detach().clone())
        copied: torch.Tensor = found[1]
        return copied

    def mark(self, name: str) -> None:
        self.found.append(Step(name, "", True, [], [], []))

    def __enter__(self) -> Any:
        self._outer, Recorder.active = Recorder.active, self
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        Recorder.active = self._outer
        super().__exit__(*raised)


def why_uneven(few: Steps, more: Steps, all_: Steps, rows: tuple[int, int, int] | None) -> str:
    """What does not go on for all rows as for a few, for a person; empty if everything does. `rows`: their numbers;
    None if samples have different numbers of rows, so that only the operations are compared."""
    if where := surroundings.differing([more.memory, all_.memory]):
        return f"it leaves a number in {where} that depends on the number of rows"
    if more.told != all_.told:
        return "it prints or writes to a file what depends on the number of rows"
    steps = [taken.found for taken in (few, more, all_)]
    names = [[step.name for step in taken] for taken in steps]
    if not names[0] == names[1] == names[2]:  # views may be made otherwise: what is computed counts
        steps = [[step for step in taken if step.counts] for taken in steps]
    for same in zip(*steps, strict=False):
        if why := _why_uneven(same, rows):
            return why
    if len({len(taken) for taken in steps}) > 1:
        return "it computes other operations on the whole batch than on a few of its rows"
    return ""


def _why_uneven(steps: Sequence[Step], rows: tuple[int, int, int] | None) -> str:
    _, step, all_ = steps
    at = f"{step.name} ({step.line})" if step.line else step.name
    if len({s.name for s in steps}) > 1:
        return f"it computes {all_.name} on the whole batch where it computes {at} on a few of its rows"
    if rows is None:
        return ""
    if not _all(_grows, [s.numbers for s in steps], rows):
        return f"{at} has a number that depends on the number of rows"
    if not _all(_grow, [s.shapes for s in steps], rows):
        return f"{at} gives another part of the whole batch than of a few of its rows"
    if not _all(_is_regular, [s.constants for s in steps], rows):
        return f"{at} gets a mask or a number that depends on a row's place, or on the number of rows"
    return ""


def _all(rule: Callable[[Any, Any], bool], values: Sequence[Sequence[Any]], rows: tuple[int, int, int]) -> bool:
    return len({len(v) for v in values}) == 1 and all(rule(column, rows) for column in zip(*values, strict=True))


def _grows(values: Sequence[Any], rows: tuple[int, int, int]) -> bool:
    """Whether a number is the same, or grows with the rows, or falls with them as 1/n."""
    few, more, all_ = values
    if few == more or (few != few and more != more):
        return bool(more == all_ or (more != more and all_ != all_))
    if any(type(value) not in (int, float) for value in values):
        return False
    even = more + (more - few) * (rows[2] - rows[1]) / (rows[1] - rows[0])
    shared = [value * n for value, n in zip(values, rows, strict=True)]
    return _close(even, all_) or (_close(shared[0], shared[1]) and _close(shared[1], shared[2]))


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-30)  # numbers of tensors may be float32


def _grow(shapes: Sequence[tuple[int, ...]], rows: tuple[int, int, int]) -> bool:
    if len({len(shape) for shape in shapes}) > 1:
        return False
    return all(
        more + (more - few) * (rows[2] - rows[1]) // (rows[1] - rows[0]) == all_
        for few, more, all_ in zip(*shapes, strict=True)
    )


def _is_regular(values: Sequence[torch.Tensor | None], rows: tuple[int, int, int]) -> bool:
    """Whether a constant that is the same for all of few rows is so for all rows. Of one that differs from row to row
    nothing is said: as the place of a row it cannot be cut anyway."""
    few, more, all_ = values
    if few is None or more is None or all_ is None:
        return True
    if not _grow([tuple(t.shape) for t in (few, more, all_)], rows):
        return False
    grows = [d for d in range(more.dim()) if few.shape[d] != more.shape[d]]
    if not grows:
        if more.numel() > 1:
            return torch.equal(more, all_) if torch.equal(few, more) else True
        return not more.numel() or _grows([t.item() for t in (few, more, all_)], rows)
    if len(grows) > 1:
        return True
    dim, many = grows[0], more.shape[grows[0]] // rows[1]
    if more.shape[dim] % rows[1] or not many:
        return True
    for lies in ((rows[1], many), (many, rows[1])):
        axis = dim + lies.index(rows[1])
        sample = more.unflatten(dim, lies).narrow(axis, 0, 1)
        if bool((more.unflatten(dim, lies) == sample).all()):
            others = (rows[2], many) if lies[0] == rows[1] else (many, rows[2])
            return bool((all_.unflatten(dim, others) == sample).all())
    return True
