"""CUDA graphs: the model's forward, its backward, and the optimizer's step are launched as one graph each.

Changes: only how kernels are launched; SGD, Adam and AdamW use their fused step (`fused_optimizer`), hence the last
digits. Applies to models on a GPU whose batches have one shape; a smaller last batch runs without a graph. The gain is
largest on small models, whose kernels take less time than their launches. Can break: models that read values on the
host while they compute, or that have hooks: these run without graphs, and a notice says so. A graph keeps its
activations in memory.

By hand:

    model = torch.cuda.make_graphed_callables(model, (images,))   # once, with a batch like all others
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True, fused=True)
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.mods.support.cuda_graph import WITHOUT, GraphedCall, ModelCalls, kind_of, reason_against, warming_up
from paceline.mods.support.graphed_step import GraphedStep
from paceline.script.seams.stage import Stage

WARM_UP = 3  # calls of a kind before the capture, in which libraries choose kernels and compilers compile
COMMON = 0.25  # share of all calls from which on a kind of call gets a graph
AT_ONCE = 4  # most calls of a kind that may be between forward and backward


class Mod:
    """Wraps training calls of every model on a GPU, and the steps of optimizers."""

    def __init__(self, value: str) -> None:
        self._models: weakref.WeakKeyDictionary[nn.Module, ModelCalls] = weakref.WeakKeyDictionary()
        self._why = ""
        self._by_name = False  # the script uses torch.autograd.grad, or backward(inputs=…)

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        if not torch.cuda.is_available():
            stage.pulse.not_in_force("cuda_graphs", "there is no GPU.")
            return
        for name in ("grad", "backward"):
            setattr(torch.autograd, name, self._noticing_names(getattr(torch.autograd, name)))

    def _noticing_names(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def differentiate(*args: Any, **kwargs: Any) -> Any:
            named = plain.__name__ == "grad" or kwargs.get("inputs") is not None
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            if named and not self._by_name and not caller.startswith(("torch.", "paceline.")):
                self._by_name = True
                if any(not g.is_free for known in self._models.values() for gs in known.graphs.values() for g in gs):
                    said = "--mod cuda_graphs: torch.autograd.grad or backward(inputs=…) is first used inside a step."
                    raise ScriptError(said, advice=WITHOUT)
            return plain(*args, **kwargs)

        return differentiate

    def on_optimizer(self, optimizer: Any) -> None:
        if torch.cuda.is_available():
            GraphedStep.put_into(optimizer)

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not (torch.is_grad_enabled() and module.training and torch.cuda.is_available()):
                return plain(module, *args, **kwargs)
            graph = self._graph(plain, module, (args, kwargs))
            if graph is not None:
                return graph((args, kwargs), by_name=self._by_name)
            with warming_up():
                return plain(module, *args, **kwargs)

        return call

    def _graph(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> GraphedCall | None:
        """A graph for this call; None if the call runs without one."""
        known = self._models.get(module)
        if known is not None and known.refused:
            return None
        if known is None or not known.layout.same():
            known = self._models[module] = ModelCalls(module)
        kind = kind_of(given)
        graphs = known.graphs.setdefault(kind, [])
        for graph in graphs:
            if graph.is_free:
                return graph
        known.seen[kind] += 1
        if known.seen[kind] <= WARM_UP or known.seen[kind] < COMMON * known.seen.total() or len(graphs) == AT_ONCE:
            return None
        why = reason_against(module, given, exchanges=self.stage.views.split_for_norms is not None)
        if not why:
            try:
                graphs.append(GraphedCall(plain, module, given))
                return graphs[-1]
            except Exception as error:  # capture fails with many types of error
                why = str(error).strip().partition("\n")[0]
        known.refused = True
        self._why = f"{type(module).__name__} runs without CUDA graphs: {why}"
        if any(known.captured for known in self._models.values()):
            self.stage.pulse.notice(self._why)
        else:
            self.stage.pulse.not_in_force("cuda_graphs", self._why)
        return None

    def idle(self) -> str:
        """Once the first calls are made, `_graph` has captured them or has reported why not."""
        calls = sum(known.seen.total() for known in self._models.values())
        undecided = self._why or calls <= 2 * WARM_UP or any(known.captured for known in self._models.values())
        return "" if undecided else "no training call has the same shapes often enough."
