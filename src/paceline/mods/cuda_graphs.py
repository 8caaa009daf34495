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

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.script import tree
from paceline.script.graphed_step import GraphedStep
from paceline.script.graphs import GraphedCall
from paceline.script.stage import Stage

WARM_UP = 3  # calls of a kind that run as before: libraries choose kernels, compilers compile
COMMON = 0.25  # the share of all calls that a kind needs, to be worth a graph
AT_ONCE = 4  # calls of a kind that may be between forward and backward


class Kinds:
    """What is known of one model's calls."""

    def __init__(self) -> None:
        self.seen: Counter[Any] = Counter()
        self.graphs: dict[Any, list[GraphedCall]] = {}
        self.refused = False


class Mod:
    """Wraps training calls of every model on a GPU, and the steps of optimizers."""

    def __init__(self, value: str) -> None:
        self._models: weakref.WeakKeyDictionary[nn.Module, Kinds] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        if not torch.cuda.is_available():
            stage.pulse.notice("The mod cuda_graphs does nothing here: there is no GPU.")

    def on_optimizer(self, optimizer: Any) -> None:
        if torch.cuda.is_available():
            GraphedStep.put_into(optimizer)

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not (torch.is_grad_enabled() and module.training and torch.cuda.is_available()):
                return plain(module, *args, **kwargs)
            graph = self._graph(plain, module, (args, kwargs))
            return plain(module, *args, **kwargs) if graph is None else graph((args, kwargs))

        return call

    def _graph(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> GraphedCall | None:
        """A graph for this call; None where it is to run as before."""
        kinds = self._models.setdefault(module, Kinds())
        if kinds.refused:
            return None
        kind = _kind(module, given)
        kinds.seen[kind] += 1
        graphs = kinds.graphs.setdefault(kind, [])
        for graph in graphs:
            if graph.is_free:
                if graph.still_fits():
                    return graph
                graphs.clear()
                break
        if kinds.seen[kind] <= WARM_UP or kinds.seen[kind] < COMMON * kinds.seen.total() or len(graphs) == AT_ONCE:
            return None
        why = _reason_against(module, given)
        if not why:
            try:
                graphs.append(GraphedCall(plain, module, given))
                return graphs[-1]
            except Exception as error:  # whatever the model does that cannot be captured
                why = str(error).strip().partition("\n")[0]
        kinds.refused = True
        self.stage.pulse.notice(f"{type(module).__name__} runs without CUDA graphs: {why}")
        return None


def _kind(module: nn.Module, given: Any) -> Any:
    leaves = tuple(
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad) if torch.is_tensor(leaf) else leaf
        for leaf in tree.leaves(given)
    )
    frozen = tuple(parameter.requires_grad for parameter in module.parameters())
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return tree.structure(given), leaves, frozen, autocast


def _reason_against(module: nn.Module, given: Any) -> str:
    if any(torch.is_tensor(leaf) and not leaf.is_cuda for leaf in (*tree.leaves(given), *module.parameters())):
        return "not all of it lies on the GPU."
    for name, child in module.named_modules():
        if child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or child._backward_pre_hooks:
            return f"{name or 'it'} has hooks, which a graph would not call."
    return ""
