"""CUDA graphs: forward and backward of the model, and the optimizer's step, each launched as a whole.

Changes: nothing but how kernels are launched; SGD, Adam and AdamW make their steps in one kernel (`fused_optimizer`),
hence the last digits. Applies to models on a GPU whose batches have one shape; the odd last batch runs as before. The
largest single gain on small models, whose kernels are shorter than their launches. Can break: models that look at
values while they compute, or whose hooks do: those run as before, and a notice says so. Takes memory: a graph keeps its
activations.

By hand:

    model = torch.cuda.make_graphed_callables(model, (images,))   # once, with a batch like all others
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True, fused=True)
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.mods.support.cuda_graph import WITHOUT, GraphedCall, Layout, aside, kind_of, reason_against
from paceline.mods.support.graphed_step import GraphedStep
from paceline.script.seams.stage import Stage

WARM_UP = 3  # calls of a kind that run as before: libraries choose kernels, compilers compile
COMMON = 0.25  # the share of all calls that a kind needs, to be worth a graph
AT_ONCE = 4  # calls of a kind that may be between forward and backward


class Known:
    """What is known of one model's calls."""

    def __init__(self, module: nn.Module) -> None:
        self.layout = Layout(module)
        self.seen: Counter[Any] = Counter()
        self.graphs: dict[Any, list[GraphedCall]] = {}
        self.refused = False


class Mod:
    """Wraps training calls of every model on a GPU, and the steps of optimizers."""

    def __init__(self, value: str) -> None:
        self._models: weakref.WeakKeyDictionary[nn.Module, Known] = weakref.WeakKeyDictionary()
        self._by_name = False  # the script asks for gradients of parameters by name

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        if not torch.cuda.is_available():
            stage.pulse.notice("The mod cuda_graphs does nothing here: there is no GPU.")
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
                    raise ScriptError("The script asks for gradients by name, which it did not before.", advice=WITHOUT)
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
            with aside():
                return plain(module, *args, **kwargs)

        return call

    def _graph(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> GraphedCall | None:
        """A graph for this call; None where it is to run as before."""
        known = self._models.get(module)
        if known is not None and known.refused:
            return None
        if known is None or not known.layout.same():
            known = self._models[module] = Known(module)
        kind = kind_of(given)
        graphs = known.graphs.setdefault(kind, [])
        for graph in graphs:
            if graph.is_free:
                return graph
        known.seen[kind] += 1
        if known.seen[kind] <= WARM_UP or known.seen[kind] < COMMON * known.seen.total() or len(graphs) == AT_ONCE:
            return None
        why = reason_against(module, given)
        if not why:
            try:
                graphs.append(GraphedCall(plain, module, given))
                return graphs[-1]
            except Exception as error:  # whatever the model does that cannot be captured
                why = str(error).strip().partition("\n")[0]
        known.refused = True
        self.stage.pulse.notice(f"{type(module).__name__} runs without CUDA graphs: {why}")
        return None
