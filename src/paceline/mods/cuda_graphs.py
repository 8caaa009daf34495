"""CUDA graphs: forward, loss with backward, and the optimizer's step are launched as one graph each.

Changes: only how kernels are launched; SGD, Adam and AdamW use their fused step (`fused_optimizer`), hence the last
digits. Applies to models on a GPU whose batches have one shape; a smaller last batch runs without a graph. The loss is
in a graph on one worker, if all steps do the same with the model's outputs and read no number before backward; outputs
that are too large to be copied are then computed at backward. The gain is largest on small models, whose kernels take
less time than their launches. Can break: models that read values on the host while they compute, or that have hooks:
these run without graphs, and a notice says so. A graph keeps its activations in memory.

By hand:

    # Once, after a few steps as usual, on tensors that keep their memory:
    with torch.cuda.graph(graph):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
    # Every step:
    images.copy_(next_images)
    labels.copy_(next_labels)
    graph.replay()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.mods.graphs.graph_choice import WARM_UP, GraphChoice
from paceline.mods.graphs.graphed_step import GraphedStep
from paceline.mods.graphs.promise import found_in, real
from paceline.script.seams.stage import Stage
from paceline.torch_private import keep_saved_tensors


class Mod:
    """Wraps training calls of every model on a GPU, their backwards, and the steps of optimizers."""

    def __init__(self, value: str) -> None: ...

    def on_stage(self, stage: Stage) -> None:
        self.stage, self.choice = stage, GraphChoice(stage)
        stage.subscribe(self)
        if torch.cuda.is_available():
            self.choice.limits.watch()
            keep_saved_tensors()  # two graphs are captured from one forward
        else:
            stage.pulse.not_in_force("cuda_graphs", "there is no GPU.")

    def on_optimizer(self, optimizer: Any) -> None:
        if torch.cuda.is_available():
            GraphedStep.put_into(optimizer)

    def before_step(self, optimizer: Any) -> None:
        self.choice.interrupt()

    def on_save(self, target: Any) -> None:
        self.choice.interrupt()

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        return self._around(plain, torch.cuda.is_available)

    def _around(self, plain: Callable[..., Any], is_here: Callable[[], bool]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.choice.interrupt()
            if found_in((args, kwargs)):
                args, kwargs = real((args, kwargs))
            if torch.is_grad_enabled() and module.training and is_here():
                return self.choice.call(plain, module, (args, kwargs))
            return plain(module, *args, **kwargs)

        return call

    def around_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grads: Any = None, **rest: Any) -> None:
            self.choice.backward(plain, tensors, grads, rest)

        return backward

    def idle(self) -> str:
        """Once the first calls are made, they are captured, or `choice` has reported why not."""
        undecided = self.choice.why or self.choice.calls <= 2 * WARM_UP or self.choice.captured
        return "" if undecided else "no training call has the same shapes often enough."
