"""One stage's part of a model's forward.

A cut is a module that the forward calls once: a stage begins with the call of its cut, and the stage before ends there.
Every worker runs the model's own forward. Modules of earlier stages are not computed: their calls return tensors that
are `Elsewhere`. At the cut the tensors among the call's arguments are handed over; where the next stage begins, the
forward is left.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from paceline.script import tree
from paceline.strategies.pipelined.elsewhere import Elsewhere, Source, handed_over, is_missing

PLAIN = (bool, int, float, str, type(None))


class CannotCut(Exception):
    """Why a model cannot be cut at this place."""


class MissingError(CannotCut):
    """A stage needs outputs of modules of earlier stages, which were not handed over."""

    def __init__(self, path: str, leaves: Sequence[Any]) -> None:
        super().__init__(f"{path} uses a value computed before the cut")
        self.sources = frozenset[Source]().union(*(leaf.sources for leaf in leaves if is_missing(leaf)))


class _Leave(BaseException):
    """The stage is done. No `except Exception` of the model catches it."""


@dataclass(slots=True)
class Parcel:
    """What one stage hands to the next: tensors, and the shapes of all that was computed so far."""

    tensors: list[torch.Tensor]  # among the arguments of the cut's call, and then the carried ones
    shapes: list[Any]  # of the output of each module call, in order
    rest: Any = None  # of the schedule


@dataclass(slots=True)
class _Way:
    """The forward that runs now."""

    stage: int
    given: Parcel | None
    begin: Callable[[], None]
    reached: int = 0  # the stage that the forward has reached
    shapes: list[Any] = field(default_factory=list)
    entered: list[torch.Tensor] = field(default_factory=list)
    outputs: dict[Source, torch.Tensor] = field(default_factory=dict)  # of modules, for this stage or a later one
    left: list[Any] = field(default_factory=list)  # leaves of the arguments of the next stage's cut


class Segments:
    """The stages of one model, by their cuts: paths of modules in the order of their calls."""

    def __init__(self, module: nn.Module, cuts: Sequence[str]) -> None:
        self._module, self.cuts = weakref.ref(module), tuple(cuts)
        # Of each cut, by number among the leaves of its call's arguments: the tensors that are handed over.
        self.wanted: list[list[int] | None] = [None] * len(cuts)
        # Of each cut, the outputs of earlier modules that are handed over besides: a skip connection over the cut.
        self.carried: list[list[Source]] = [[] for _ in cuts]
        above = {".".join(cut.split(".")[:depth]) for cut in cuts for depth in range(len(cut.split(".")))} | {""}
        self.units = dict(self._find_units(above))
        self._stage_of_cut = {id(module.get_submodule(cut)): number + 1 for number, cut in enumerate(cuts)}
        self._way: _Way | None = None

    @property
    def module(self) -> nn.Module:
        """The model, which is not kept alive."""
        module = self._module()
        assert module is not None
        return module

    @property
    def last(self) -> int:
        return len(self.cuts)

    def _find_units(self, above: set[str]) -> Iterator[tuple[str, nn.Module]]:
        """The modules that the forward calls outside of all others: each belongs to a stage as a whole."""
        seen = {id(self.module.get_submodule(path)) for path in above}
        todo = sorted(above)
        while todo:
            path = todo.pop(0)
            for name, child in self.module.get_submodule(path).named_children():
                below = f"{path}.{name}" if path else name
                if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                    todo.append(below)
                elif id(child) not in seen:
                    seen.add(id(child))
                    yield below, child

    def run(
        self,
        stage: int,
        plain: Callable[..., Any],
        args: Any,
        kwargs: Any,
        given: Parcel | None,
        *,
        begin: Callable[[], None] = lambda: None,
        unit_called: Callable[[int, str], None] = lambda stage, path: None,
    ) -> tuple[Any, list[torch.Tensor], Parcel | None]:
        """Runs a stage. Returns the model's output (of the last stage), the tensors that were handed over, as the stage
        used them, and the parcel for the next stage. `begin` is called where the stage begins."""
        self._way = way = _Way(stage, given, begin)
        if given is not None and (carried := self.carried[stage - 1]):
            tensors = given.tensors[-len(carried) :]
            way.outputs = dict(zip(carried, map(_own, tensors), strict=True))
        if not stage:
            begin()
        try:
            with self._led(way, unit_called):
                output = plain(self.module, *args, **kwargs)
        except _Leave:
            found = [i for i, leaf in enumerate(way.left) if isinstance(leaf, torch.Tensor)]
            wanted = self.wanted[stage]
            chosen = found if wanted is None else wanted
            if any(i not in found for i in chosen):
                raise CannotCut(f"{self.cuts[stage]} is called with other arguments than before") from None
            if any(is_missing(way.left[i]) for i in chosen):
                raise MissingError(self.cuts[stage], [way.left[i] for i in chosen]) from None
            carried = self.carried[stage]
            if lost := [source for source in carried if source not in way.outputs]:
                raise CannotCut(f"the output of module call {lost[0][0]} is not there") from None
            tensors = [way.left[i] for i in chosen] + [way.outputs[source] for source in carried]
            return None, way.entered, Parcel(tensors, way.shapes)
        finally:
            self._way = None
        if way.reached < stage or stage < self.last:
            raise CannotCut(f"the forward did not call {self.cuts[min(way.reached, self.last - 1)]}")
        output = tree.replace(output, handed_over)
        if any(map(is_missing, tree.leaves(output))):
            raise MissingError("the model's output", tree.leaves(output))
        return output, way.entered, None

    @contextmanager
    def _led(self, way: _Way, unit_called: Callable[[int, str], None]) -> Iterator[None]:
        """While the forward runs, calls of units come here, before their hooks."""
        kept = [(unit, unit.__dict__.get("_compiled_call_impl")) for unit in self.units.values()]

        def lead(path: str, unit: nn.Module) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                return self._call(way, path, unit, args, kwargs, unit_called)

            return call

        for path, unit in self.units.items():
            unit.__dict__["_compiled_call_impl"] = lead(path, unit)
        try:
            yield
        finally:
            for unit, before in kept:
                unit.__dict__["_compiled_call_impl"] = before

    def _call(self, way: _Way, path: str, unit: nn.Module, args: Any, kwargs: Any, unit_called: Any) -> Any:
        begins = self._stage_of_cut.get(id(unit))
        if begins is not None:
            if begins != way.reached + 1:
                raise CannotCut(f"the forward calls {path} more than once, or in another order than before")
            if way.reached == way.stage:
                way.left = [handed_over(leaf) for leaf in tree.leaves((args, kwargs))]
                raise _Leave
            way.reached = begins
            if begins == way.stage:
                self._hand_over(way, tree.leaves((args, kwargs)))
                way.begin()
        number = len(way.shapes)
        if way.reached < way.stage:
            assert way.given is not None
            if number >= len(way.given.shapes):
                raise CannotCut(f"the forward calls {path} in one stage and not in another")
            way.shapes.append(way.given.shapes[number])
            return _Placeholders(number, way.outputs).of(way.shapes[number])
        args, kwargs = tree.replace((args, kwargs), handed_over)
        if any(map(is_missing, tree.leaves((args, kwargs)))):
            raise MissingError(path, tree.leaves((args, kwargs)))
        unit_called(way.stage, path)
        output = type(unit)._call_impl(unit, *args, **kwargs)
        way.shapes.append(_shapes_of(output, path))
        if way.stage < self.last and any(number == call for call, _ in self.carried[way.stage]):
            tensors = [leaf for leaf in tree.leaves(output) if isinstance(leaf, torch.Tensor)]
            way.outputs |= {(number, i): tensor for i, tensor in enumerate(tensors)}
        return output

    def _hand_over(self, way: _Way, leaves: list[Any]) -> None:
        assert way.given is not None
        found = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        wanted = self.wanted[way.stage - 1]
        missing = [i for i in found if is_missing(leaves[i])]
        many = len(way.given.tensors) - len(self.carried[way.stage - 1])
        if wanted is None:  # the first run of this cut: the parcel has all tensors
            self.wanted[way.stage - 1] = missing
        elif missing != wanted or len(wanted) != many:
            raise CannotCut(f"{self.cuts[way.stage - 1]} is called with other arguments than before")
        tensors = dict(zip(found if wanted is None else wanted, way.given.tensors[:many], strict=True))
        for i in missing:
            leaves[i].value = _own(tensors[i])
        way.entered = list(way.given.tensors)


def _shapes_of(value: Any, path: str) -> Any:
    """A plain description of a module's output."""
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."), "on": str(value.device)}
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_shapes_of(item, path) for item in value)]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return ["dict", *([key, _shapes_of(item, path)] for key, item in value.items())]
    if isinstance(value, PLAIN):
        return value
    raise CannotCut(f"{path} returns a {type(value).__name__}")


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with a graph of its own: the model may change it in place, which a leaf would refuse."""
    return tensor.clone() if tensor.requires_grad else tensor


@dataclass(slots=True)
class _Placeholders:
    """The output of a module call that another stage computes, with the tensors that were handed over."""

    number: int
    handed_over: dict[Source, torch.Tensor]
    made: int = 0

    def of(self, shapes: Any) -> Any:
        if isinstance(shapes, dict):
            source, self.made = (self.number, self.made), self.made + 1
            if source in self.handed_over:
                return self.handed_over[source]
            dtype, device = getattr(torch, shapes["dtype"]), torch.device(shapes["on"])
            return Elsewhere.like(shapes["shape"], dtype, device, source)
        if isinstance(shapes, list):
            kind, *items = shapes
            if kind == "dict":
                return {key: self.of(item) for key, item in items}
            return (list if kind == "list" else tuple)(self.of(item) for item in items)
        return shapes
