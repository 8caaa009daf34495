"""The axis pipe of a mesh, with the axes data and model: stages of a pipeline, whose workers split layers along model.

    paceline run -n 4 --strategy "mesh(pipe=2,model=2)" train.py

What a stage holds is a tensor of that stage, as under `Pipeline`; its numbers are a DTensor along the axis model, and
the stage computes with a parameter that is split, as under `Mesh`. Activations are whole between stages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.axes import Axes
from paceline.errors import UsageError
from paceline.script.seams.stage import Stage
from paceline.spread.dtensors import split
from paceline.spread.stage_tensor import Inside, StageTensor
from paceline.strategies.mesh import operand_check
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.model_axis import KINDS, Chosen, ModelAxis, plain_new
from paceline.strategies.mesh.sharded_parameter import whole
from paceline.strategies.pipeline import Pipeline


class PipedMesh(Pipeline):
    """When a peer dies, the message that misses it raises."""

    name = "mesh"

    def __init__(self, data: int = 0, pipe: int = 2, model: int = 1, *, layout: str = "", dimensions: str = "") -> None:
        """`data`, `pipe` and `model`: the number of workers on each axis; data=0: as many as there are. `layout` and
        `dimensions`: as of `Mesh`."""
        super().__init__(stages=pipe, data=data)
        self.model = model
        self.layout = MeshLayout.of(layout, dimensions)
        self._layers: SplitLayers | None = None  # with several workers on the axis model

    def axes(self, workers: int) -> Axes:
        if self.model == 1:
            return super().axes(workers)
        replica = self.stages * max(self.model, 1)  # workers of one replica of the pipeline
        data = self.data or workers // replica
        if self.model < 1 or data * replica != workers:
            raise UsageError(
                f"mesh(data={self.data or '…'},pipe={self.stages},model={self.model}) needs data × pipe × model "
                f"workers; the run has {workers}.",
                advice=f"Type: -n {max(data, 1) * replica}",
            )
        return Axes(pipe=self.stages, data=data, tensor=self.model)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if self.model > 1 and not stage.aside:
            self._layers = self.holding.team.inside = SplitLayers(ModelAxis(stage, self.layout, self._name_of))
            stage.subscribe(self._layers.axis.agreement)

    def on_enough(self) -> None:
        super().on_enough()
        if self._layers is not None:
            self._layers.axis.agreement.compare_last()

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._layers is not None:
            self._layers.axis.compare((args, kwargs))
        return super().call(plain, module, args, kwargs)

    def _lay_out(self, module: nn.Module) -> None:
        if self._layers is not None:
            self._layers.choose(module)


class SplitLayers(Inside):
    """The workers of a stage split its layers over the axis model, as a layout says."""

    def __init__(self, axis: ModelAxis) -> None:
        self.axis = axis
        self._chosen: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def choose(self, module: nn.Module) -> None:
        """Every worker calls it; waits for all."""
        for parameter, dim, name in self.axis.choose(module):
            self.axis.root(parameter.device.type)
            self._chosen[parameter] = dim, name

    def cut(self, parameter: torch.Tensor) -> torch.Tensor:
        if parameter not in self._chosen:
            return parameter.detach()
        operand_check.note((parameter, parameter.grad))
        dim, _ = self._chosen[parameter]
        return split(parameter, self.axis.mesh(parameter.device.type), (Shard(dim),))

    def leaf(self, parameter: StageTensor) -> nn.Parameter:
        if parameter not in self._chosen:
            return super().leaf(parameter)
        leaf: nn.Parameter = plain_new(nn.Parameter, parameter.value, parameter.requires_grad)
        self.axis.mark(leaf, Chosen(leaf, *self._chosen[parameter]))
        return leaf

    def plain(self, leaf: Any) -> Any:
        return whole(leaf) if isinstance(leaf, KINDS) else leaf
