"""A training step as two CUDA graphs: the model's call; then what the script makes of its outputs, and the backward.

The first calls are computed as usual and note what the script does (`Recording`). If two of them have the same tape,
the next call is captured with it. From then on each call is a `Pending` step, whose outputs are promises (`promise`):
if the script does what the tape says, its backward launches the second graph; at the first difference, the step goes on
as that of any `GraphedCall`. Outputs that are too large to be copied are not computed before backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.mods.graphs.graphed_call import WITHOUT, Capture, GraphedCall, GraphLayout, KeptGradients, casting_anew
from paceline.mods.graphs.promise import (
    Given,
    Promise,
    State,
    Tape,
    Unfit,
    Use,
    call_for_real,
    entry_of,
    found_in,
    real,
    spent,
)
from paceline.script import tree

SMALL = 1 << 20  # bytes of a result that is copied out of the graphs' common memory
LATE = 1 << 26  # bytes of outputs from which on a copy costs more than an early start of the forward
MISSES = 3  # steps that may differ from the tape at least, and launches to each


class Recording:
    """A step that is computed as usual, while its tape is written. `why`: the reason that it cannot be one graph."""

    def __init__(self) -> None:
        self.tape, self.why = Tape(), ""
        self._count = 0
        self._open = True

    @property
    def is_whole(self) -> bool:
        return self.tape.loss >= 0 and not self.why

    def hand_out(self, value: Any) -> Any:
        return tree.replace(value, self._promise)

    def _promise(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        promise = Promise.of(self, self._count, leaf, learns=leaf.requires_grad)
        promise.own = leaf
        self._count += 1
        return promise

    def refuse(self, why: str) -> None:
        if self._open:
            self._open, self.why = False, why

    def interrupt(self) -> None:
        self.refuse("another call of a model, or a step, comes before the backward.")

    def do(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            entry = entry_of(func, args, kwargs, self._place)[0] if self._open else None
        except Unfit as unfit:
            self.refuse(str(unfit))
            entry = None
        if entry is None:
            return call_for_real(func, args, kwargs)
        with casting_anew():  # as in the capture, for compiled functions
            found = call_for_real(func, args, kwargs)
        device = found_in((args, kwargs))[0].device
        if not all(isinstance(leaf, torch.Tensor) and leaf.device == device for leaf in tree.leaves(found)):
            self.refuse(f"{getattr(func, '__name__', func)} is read by the host before backward.")
            return found
        self.tape.entries.append(entry)
        self.tape.results += [Given.like(leaf) for leaf in tree.leaves(found)]
        return self.hand_out(found)

    def _place(self, leaf: Any) -> int | None:
        return leaf.place if isinstance(leaf, Promise) and leaf.holder is self else None

    def come_true(self) -> None:
        """Every promise has its value."""

    def value_of(self, promise: Promise, use: Use) -> torch.Tensor:
        assert promise.own is not None
        return promise.own

    def go_back(self, promise: Promise) -> bool:
        if self._open:
            self._open, self.tape.loss = False, promise.place
        return False


class WholeStep(GraphedCall):
    """A call whose loss and backward are a graph, too, launched if the script does what the tape says. `late`: the
    forward is launched with them, since its outputs are too large to be copied. `launches` and `misses` count the steps
    that did what the tape says, and the others."""

    def __init__(
        self, plain: Any, module: nn.Module, given: Any, tape: Tape, capture: Capture | None = None, late: int = LATE
    ) -> None:
        """As for any `GraphedCall`. `late`: bytes of outputs from which on the forward is late."""
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree.leaves(given)):
            raise ScriptError("an input of the model has a gradient.", advice=WITHOUT)
        self.tape = tape
        self.givens = [[given.blank() for given in entry.givens()] for entry in tape.entries]
        self._homes = [result.blank() if result.nbytes <= SMALL else None for result in tape.results]
        self._layout = GraphLayout(module)
        super().__init__(plain, module, given, capture)
        self._kept_by_loss.seal()
        own = {tensor.untyped_storage().data_ptr() for tensor in chain(self._inputs, *self.givens)}
        if any(value.untyped_storage().data_ptr() in own for value in self.statics):
            raise ScriptError("a result is one of the inputs.", advice=WITHOUT)
        self.late = sum(output.nbytes for output in self._outputs) > late
        self.launches = self.misses = 0
        self._before: weakref.ref[Pending] | None = None

    def _capture_loss(self, capture: Capture) -> None:
        self._kept_by_loss = KeptGradients(self.parameters, self._kept.room)
        self._loss = capture(self._go_through_loss)
        results = [*self._live, *self._found]
        self.learns = [result.requires_grad for result in results]
        self.names = [type(result.grad_fn).__name__ for result in results]
        homes = [*(None for _ in self._live), *self._homes]
        self.statics = [(r if home is None else home).detach() for r, home in zip(results, homes, strict=True)]
        self._at_home = [place for place, home in enumerate(homes) if home is not None]
        self._in_common = [place for place, home in enumerate(homes) if home is None]
        self.shapes = [tree.replace(shape, _bare) for shape in (self._output, *self._shapes)]
        self._found.clear()
        self._shapes.clear()

    def _go_through_loss(self) -> list[torch.Tensor]:
        results = list(self._live)
        self._shapes = []
        for entry, givens in zip(self.tape.entries, self.givens, strict=True):
            self._shapes.append(entry.call(results, givens))
            results += [leaf for leaf in tree.leaves(self._shapes[-1]) if isinstance(leaf, torch.Tensor)]
        self._found = results[len(self._live) :]
        found = torch.autograd.grad(results[self.tape.loss], self.parameters, allow_unused=True, retain_graph=True)
        self._kept_by_loss.capture(found)
        for home, result in zip(self._homes, self._found, strict=True):
            if home is not None:
                home.copy_(result.detach())
        return [result for home, result in zip(self._homes, self._found, strict=True) if home is None]

    @property
    def is_regular(self) -> bool:
        """Whether most steps do what the tape says."""
        return self.misses <= MISSES or self.misses * MISSES <= self.launches

    def open(self, given: Any) -> tuple[Pending, Any]:
        """A step with these inputs; returns it and its outputs, which are promises."""
        self._fill([leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor)])
        pending = Pending(self, None if self.late else self.outputs(), self._layout.versions() if self.late else [])
        self._last = weakref.ref(pending)
        return pending, pending.hand_out(self.shapes[0])

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Launches the forward, and returns copies of its outputs."""
        self._make_room(self._in_common)
        self._forward()
        return tuple(output.clone() for output in self._outputs)

    def _make_room(self, places: list[int]) -> None:
        """Before a launch that overwrites these places: what the script still holds of the step before gets memory of
        its own. The forward overwrites the memory that all graphs use, the loss the homes of its results."""
        if (before := None if self._before is None else self._before()) is not None:
            before.keep(places)

    def launch(self, pending: Pending, versions: list[int]) -> None:
        """Loss and backward; if it is late, the forward, too."""
        self._make_room(self._at_home)
        if self.late:
            self._make_room(self._in_common)
            if versions != self._layout.versions():
                said = "--mod cuda_graphs: a weight is changed in place between the model's call and its backward."
                raise ScriptError(said, advice=WITHOUT)
            self._forward()
        self._before = weakref.ref(pending)
        self.launches += 1
        self._kept_by_loss.let_go()
        self._loss()
        self._kept_by_loss.hand_out()

    def with_gradients(self, outputs: tuple[torch.Tensor, ...]) -> Any:
        """The outputs as those of any `GraphedCall`, whose backward is a graph of its own."""
        self._ready = outputs
        with torch.inference_mode(False), torch.enable_grad():  # wherever the script is
            return self(None, by_name=False)

    def forward(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready
        self._fill(tensors)
        return self.outputs()

    _ready: tuple[torch.Tensor, ...] | None = None


class Pending:
    """A step whose loss and backward are not launched yet; afterwards, what its promises stand for. `outputs`: of the
    model, None if it is late."""

    def __init__(self, whole: WholeStep, outputs: tuple[torch.Tensor, ...] | None, versions: list[int]) -> None:
        self._whole, self._outputs, self._versions = whole, outputs, versions
        self.went_back = False
        self._open = True
        self._calls: list[tuple[Callable[..., Any], Any, Any, State, Any]] = []  # as made, and their results
        self._promised: Any = None  # the outputs
        self._alive: list[weakref.ref[Promise]] = []

    def hand_out(self, shape: Any) -> Any:
        found = tree.replace(shape, self._promise)
        if self._promised is None:
            self._promised = found
        return found

    def _promise(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        place = len(self._alive)
        promise = Promise.of(self, place, self._whole.statics[place], learns=self._whole.learns[place])
        self._alive.append(weakref.ref(promise))
        return promise

    def interrupt(self) -> None:
        self.come_true()

    def do(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._open:
            found = self._as_on_tape(func, args, kwargs)
            if found is not None:
                return found
            self.come_true()
        return call_for_real(func, args, kwargs)

    def _as_on_tape(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The promised results, if this is the next function of the tape; else None."""
        number, entries = len(self._calls), self._whole.tape.entries
        if number == len(entries) or func is not entries[number].func:
            return None
        try:
            entry, givens = entry_of(func, args, kwargs, self._place)
        except Unfit:
            return None
        if entry != entries[number]:
            return None
        for own, tensor in zip(self._whole.givens[number], givens, strict=True):
            own.copy_(tensor, non_blocking=True)
        found = self.hand_out(self._whole.shapes[number + 1])
        self._calls.append((func, args, kwargs, entry.state, found))
        return found

    def _place(self, leaf: Any) -> int | None:
        return leaf.place if isinstance(leaf, Promise) and leaf.holder is self else None

    def go_back(self, promise: Promise) -> bool:
        tape = self._whole.tape
        if not self._open or len(self._calls) < len(tape.entries) or promise.place != tape.loss:
            return False
        self._close()
        self.went_back = True
        self._whole.launch(self, self._versions)
        return True

    def come_true(self) -> None:
        """Computes the step as far as it has come, with autograd's graph."""
        if not self._open:
            return
        self._whole.misses += 1
        calls, promised, outputs = self._calls, self._promised, self._outputs
        self._close()
        _keep_values(promised, self._whole.with_gradients(outputs or self._whole.outputs()))
        for func, args, kwargs, state, results in calls:
            args, kwargs = real((args, kwargs))
            with state.on(self._whole.statics[0].device.type):
                _keep_values(results, func(*args, **kwargs))

    def _close(self) -> None:
        self._open = False
        self._calls, self._promised = [], None

    def value_of(self, promise: Promise, use: Use) -> torch.Tensor:
        if promise.own is not None:
            return promise.own
        place, whole = promise.place, self._whole
        value = promise.memory
        if value is None:
            copied = self._outputs is not None and place < len(self._outputs)
            value = self._outputs[place] if copied else whole.statics[place]  # type: ignore[index]
            if use in (Use.KEEP, Use.DETACH):
                value = promise.memory = value if copied else value.clone()
        if use in (Use.READ, Use.DETACH) or not whole.learns[place]:
            return value
        value = spent(value, whole.names[place])
        if use is Use.KEEP:
            promise.own = value
        return value

    def keep(self, places: list[int]) -> None:
        """The promises of these places that the script still holds get memory of their own."""
        first = 0 if self._outputs is None else len(self._outputs)
        for place in places:
            if first <= place < len(self._alive) and (promise := self._alive[place]()) is not None:
                self.value_of(promise, Use.DETACH)


def _keep_values(promised: Any, found: Any) -> None:
    for promise, value in zip(tree.leaves(promised), tree.leaves(found), strict=True):
        if isinstance(promise, Promise):
            promise.own = value


def _bare(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
