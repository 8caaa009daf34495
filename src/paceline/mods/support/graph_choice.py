"""Which graphs compute a training call: with the loss, without it, or none.

Each kind of call (same structure, shapes, dtypes) goes through the same course: a few calls without a graph, which are
recorded; then, if the last two had the same tape, a `WholeStep`; if that cannot be captured, a `GraphedCall`; if that
cannot be captured either, none.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from paceline.mods.support.cuda_graph import (
    Capture,
    GraphedCall,
    GraphLayout,
    has_hooks,
    in_one_pool,
    kind_of,
    reason_against,
    warming_up,
)
from paceline.mods.support.graph_limits import GraphLimits
from paceline.mods.support.promise import found_in, real
from paceline.mods.support.tape import Tape
from paceline.mods.support.whole_step import Pending, Recording, WholeStep
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
