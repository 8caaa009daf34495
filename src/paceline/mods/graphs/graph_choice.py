"""Which graphs compute a training call: with the loss, without it, or none.

Each kind of call (same structure, shapes, dtypes) goes through the same course: a few calls without a graph, which are
recorded; then, if the last two had the same tape, a `WholeStep`; if that cannot be captured, a `GraphedCall`; if that
cannot be captured either, none.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.mods.graphs.graphed_call import (
    WITHOUT,
    Capture,
    GraphedCall,
    GraphLayout,
    has_hooks,
    in_one_pool,
    kind_of,
    reason_against,
    warming_up,
)
from paceline.mods.graphs.promise import Promise, Tape, found_in, real
from paceline.mods.graphs.whole_step import Pending, Recording, WholeStep
from paceline.script import tree
from paceline.script.seams.stage import Stage
from paceline.torch_private import parameters_in

WARM_UP = 3  # calls of a kind before the capture, in which libraries choose kernels and compilers compile
COMMON = 0.25  # share of all calls from which on a kind of call gets a graph
AT_ONCE = 4  # most calls of a kind that may be between forward and backward


class CallKind:
    """The calls of one kind."""

    def __init__(self) -> None:
        self.graphs: list[GraphedCall] = []
        self._recordings: list[Recording] = []

    def record(self) -> Recording:
        self._recordings = [*self._recordings[-1:], Recording()]
        return self._recordings[-1]

    def common_tape(self) -> Tape | None:
        """The tape of the last two recorded calls, if it was the same."""
        tapes = [recording.tape for recording in self._recordings if recording.is_whole]
        self._recordings = []
        return tapes[0] if len(tapes) == 2 and tapes[0] == tapes[1] else None


class ModelCalls:
    """The calls of one model."""

    def __init__(self, module: nn.Module) -> None:
        self.layout = GraphLayout(module)
        self.parameters = list(parameters_in(module))
        self.seen: Counter[Any] = Counter()
        self.kinds: dict[Any, CallKind] = {}
        self.refused = False

    @property
    def graphs(self) -> list[GraphedCall]:
        return [graph for kind in self.kinds.values() for graph in kind.graphs]

    def see(self, given: Any) -> tuple[CallKind, bool]:
        """Counts a call; returns its kind, and whether such calls are common enough for a graph."""
        key = kind_of(given)
        kind = self.kinds.setdefault(key, CallKind())
        self.seen[key] += 1
        return kind, self.seen[key] > WARM_UP and self.seen[key] >= COMMON * self.seen.total()


class GraphChoice:
    """The training calls of all models of a worker. `why`: why the last refused model has no graph."""

    def __init__(self, stage: Stage, capture: Callable[[], Capture] = in_one_pool) -> None:
        """`capture`: makes what makes graphs; tests give a stand-in."""
        self.stage, self.why, self._capture = stage, "", capture
        self.limits = GraphLimits(lambda: any(not g.is_free for known in self._models.values() for g in known.graphs))
        self._models: weakref.WeakKeyDictionary[nn.Module, ModelCalls] = weakref.WeakKeyDictionary()
        self._step: Recording | Pending | None = None  # the last one

    @property
    def calls(self) -> int:
        return sum(known.seen.total() for known in self._models.values())

    @property
    def captured(self) -> bool:
        return any(known.graphs for known in self._models.values())

    def interrupt(self) -> None:
        """What comes next needs the effects of the last call, which may still have to be computed."""
        if self._step is not None:
            self._step.interrupt()
            self._step = None

    def backward(self, plain: Callable[..., Any], tensors: Any, grads: Any, rest: dict[str, Any]) -> None:
        promises = found_in([tensors])
        alone = len(promises) == 1 and (isinstance(tensors, torch.Tensor) or len(tensors) == 1)
        if alone and grads is None and not any(rest.values()):
            if promises[0].holder.go_back(promises[0]):
                return
        elif promises:
            self.interrupt()
        if promises or found_in([grads]):
            tensors, grads = real([tensors, grads])
        plain(tensors, grads, **rest)

    def call(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> Any:
        """A training call."""
        known = self._models.get(module)
        if known is None or not (known.refused or known.layout.same()):
            known = self._models[module] = ModelCalls(module)
        if known.refused:
            return self._plainly(plain, module, given)
        kind, is_common = known.see(given)
        if is_common:
            graph = self._free_graph(kind) or self._new_graph(plain, module, given, known, kind)
            return self._plainly(plain, module, given) if graph is None else self._with(graph, given, known)
        output = self._plainly(plain, module, given)
        if not self._may_be_whole(known):
            return output
        self._step = recording = kind.record()
        return recording.hand_out(output)

    def _plainly(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> Any:
        args, kwargs = given
        with warming_up(leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor)):
            return plain(module, *args, **kwargs)

    def _may_be_whole(self, known: ModelCalls) -> bool:
        return not (self.stage.group.world > 1 or self.limits.by_name or has_hooks(known.parameters))

    def _with(self, graph: GraphedCall, given: Any, known: ModelCalls) -> Any:
        if not (isinstance(graph, WholeStep) and graph.is_regular and self._may_be_whole(known)):
            return graph(given, by_name=self.limits.by_name)
        self._step, output = graph.open(given)
        return output

    @staticmethod
    def _free_graph(kind: CallKind) -> GraphedCall | None:
        return next((graph for graph in kind.graphs if graph.is_free), None)

    def _new_graph(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, known: ModelCalls, kind: CallKind
    ) -> GraphedCall | None:
        if len(kind.graphs) == AT_ONCE:
            return None
        why = reason_against(module, given, exchanges=self.stage.views.split_for_norms is not None)
        tape = kind.common_tape()
        made: GraphedCall | None = None
        if not why and tape is not None:
            with suppress(Exception):  # capture fails with many types of error
                made = WholeStep(plain, module, given, tape, self._capture())
        if not why and made is None:
            try:
                made = GraphedCall(plain, module, given, self._capture())
            except Exception as error:
                why = str(error).strip().partition("\n")[0]
        if made is not None:
            kind.graphs.append(made)
            return made
        known.refused = True
        self.why = f"{type(module).__name__} runs without CUDA graphs: {why}"
        if self.captured:
            self.stage.pulse.notice(self.why)
        else:
            self.stage.pulse.not_in_force("cuda_graphs", self.why)
        return None


# -- uses of torch by the script that graphs must know of -------------------------------------------------------------


class GraphLimits:
    """`by_name`: the script uses torch.autograd.grad, or backward(inputs=…), so autograd must see the parameters."""

    def __init__(self, in_flight: Callable[[], bool]) -> None:
        """`in_flight`: whether a call is between its forward and its backward."""
        self.by_name = False
        self._in_flight = in_flight

    def watch(self) -> None:
        for name in ("grad", "backward"):
            setattr(torch.autograd, name, self._noticing_names(getattr(torch.autograd, name)))
        torch.compile = _compiling_for_values(torch.compile)
        # A Function takes a promise for a leaf of autograd's graph: its gradient would go nowhere.
        torch.autograd.Function.apply = classmethod(_with_values(torch.autograd.Function.apply.__func__))  # type: ignore[attr-defined, method-assign, assignment]

    def _noticing_names(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def differentiate(*args: Any, **kwargs: Any) -> Any:
            named = plain.__name__ == "grad" or kwargs.get("inputs") is not None
            if named and not self.by_name and _by_script():
                self.by_name = True
                if self._in_flight():
                    said = "--mod cuda_graphs: torch.autograd.grad or backward(inputs=…) is first used inside a step."
                    raise ScriptError(said, advice=WITHOUT)
            return plain(*args, **kwargs)

        return differentiate


def _compiling_for_values(plain: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, whose functions are given values in place of promises. Models are given none anyway."""

    @wraps(plain)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        made = plain(model, **kwargs)
        if model is None:
            return lambda function: compile(function, **kwargs)
        return made if isinstance(model, nn.Module) or torch.compiler.is_dynamo_compiling() else _with_values(made)

    return compile


def _by_script() -> bool:
    """Whether the caller's caller is neither torch nor paceline."""
    return not str(sys._getframe(2).f_globals.get("__name__")).startswith(("torch.", "paceline."))


def _with_values(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling() and any(type(arg) is Promise for arg in (*args, *kwargs.values())):
            args, kwargs = real((args, kwargs))
        return plain(*args, **kwargs)

    return call
