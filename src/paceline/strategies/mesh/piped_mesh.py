"""The axis pipe of a mesh, with the axes data, shard and model: stages of a pipeline, each with several workers.

    paceline run -n 4 --strategy "mesh(pipe=2,model=2)" train.py
    paceline run -n 4 --strategy "mesh(pipe=2,shard=2)" train.py

What a stage holds is a tensor of that stage, as under `Pipeline`; its numbers are a DTensor. Along the axis model the
stage computes with a parameter that is split, as under `Mesh`, and activations are whole between stages. Along the axis
shard lie rows, and each worker keeps a part of the stage's parameters: they are gathered for a call and its backward,
for all micro-batches at once, and their gradients are averaged in the backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.axes import Axes
from paceline.comm.torch_backend import torch_mesh
from paceline.errors import UsageError
from paceline.script.seams import hidden_group
from paceline.script.seams.stage import Stage
from paceline.spread import dtensors
from paceline.spread.stage_tensor import Inside, StageTensor, memory_of
from paceline.strategies.mesh import functions, operand_check
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.model_axis import KINDS, Chosen, ModelAxis, plain_new
from paceline.strategies.mesh.sharded_parameter import whole
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.shards.rules import Beside, Rules
from paceline.torch_private import strided_shard


class PipedMesh(Pipeline):
    """When a peer dies, the message that misses it raises."""

    name = "mesh"

    def __init__(
        self, data: int = 0, pipe: int = 2, model: int = 1, shard: int = 1, *, layout: str = "", dimensions: str = ""
    ) -> None:
        """`data`, `pipe`, `model` and `shard`: the number of workers on each axis; data=0: as many as there are.
        `layout` and `dimensions`: as of `Mesh`."""
        super().__init__(stages=pipe, data=data)
        self.model, self.shard = model, shard
        self.layout = MeshLayout.of(layout, dimensions)
        self._parts: PartsOfStage | None = None  # with several workers on the axis model or shard

    def axes(self, workers: int) -> Axes:
        if self.model == self.shard == 1:
            return super().axes(workers)
        replica = self.stages * self.shard * max(self.model, 1)  # workers of one replica of the pipeline
        data = self.data or workers // replica
        if self.model < 1 or data * replica != workers:
            sizes = {"data": self.data or "…", "pipe": self.stages, "shard": self.shard, "model": self.model}
            sizes = {axis: size for axis, size in sizes.items() if size != 1 or axis == "data"}
            typed = ",".join(f"{axis}={size}" for axis, size in sizes.items())
            raise UsageError(
                f"mesh({typed}) needs {' × '.join(sizes)} workers; the run has {workers}.",
                advice=f"Type: -n {max(data, 1) * replica}",
            )
        return Axes(pipe=self.stages, data=data, shard=self.shard, tensor=self.model)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if self.model == self.shard == 1 or stage.aside:
            return
        axis = ModelAxis(stage, self.layout, self._name_of) if self.model > 1 else None
        self._parts = self.holding.team.inside = PartsOfStage(stage, axis)
        if axis is not None:
            stage.subscribe(axis.agreement)

    def on_enough(self) -> None:
        super().on_enough()
        if self._parts is not None and self._parts.axis is not None:
            self._parts.axis.agreement.compare_last()

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._parts is not None and self._parts.axis is not None:
            self._parts.axis.compare((args, kwargs))
        return super().call(plain, module, args, kwargs)

    def compare_operands(self) -> None:
        """Also between the replicas of a stage, if they hold parts of one tensor."""
        if self.shard == 1:
            super().compare_operands()
        else:
            self.holding.operands.compare(self.stage.group)

    def _lay_out(self, module: nn.Module) -> None:
        if self._parts is not None:
            self._parts.lay_out(module)


class PartsOfStage(Inside):
    """The workers of a stage split its layers over the axis model, as a layout says, and its replicas divide what each
    of them keeps over the axis shard."""

    def __init__(self, stage: Stage, axis: ModelAxis | None) -> None:
        self._stage, self.axis = stage, axis
        self._chosen: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter → dimension and name on the axis model
        self._roots: dict[str, Any] = {}  # meshes of all axes, by kind of device
        self._shards = stage.axes.shard > 1
        if self._shards:
            members = stage.axes.members(stage.group.rank, "shard")
            self._mates = stage.group.along("shard", members)
            self._mates.ending, self._mates.together = stage.ending, stage.together
            hidden_group.hide()
            beside = None if axis is None else Beside(functions.answer, whole)
            Rules(stage.rows, lambda: False, lambda parameter: None, beside, watches=False).install()

    def lay_out(self, module: nn.Module) -> None:
        """Every worker calls it; waits for all."""
        chosen = [] if self.axis is None else self.axis.choose(module)
        self._chosen.update({parameter: (dim, name) for parameter, dim, name in chosen})
        for device in sorted({parameter.device.type for parameter in module.parameters()} - self._roots.keys()):
            if self.axis is None:
                names = [axis for axis in ("pipe", "data", "shard") if axis != "data" or self._stage.axes.data > 1]
                root = torch_mesh.mesh(self._stage.group, self._stage.axes, device, *names)
            else:
                root = self.axis.root(device)
            self._roots[device] = root
            if self._shards:
                dtensors.connect(root["shard"], self._mates)
                if self.axis is not None:
                    dtensors.connect(root["shard", "tensor"], self._mates, self.axis.workers)

    def cut(self, parameter: torch.Tensor) -> torch.Tensor:
        root, role = self._roots[parameter.device.type], self.role(parameter)
        along_model = () if role is None else (Shard(role[0]),)
        if along_model:
            operand_check.note((parameter, parameter.grad))
        if not self._is_sharded(parameter):
            return dtensors.split(parameter, root["tensor"], along_model) if along_model else parameter.detach()
        if not along_model:
            return dtensors.split(parameter, root["shard"], (Shard(0),))
        # The axis model splits first, as for FSDP2.
        along_shard: Any = strided_shard(0, root["tensor"].size()) if role[0] == 0 else Shard(0)
        return dtensors.split(parameter, root["shard", "tensor"], (along_shard, *along_model))

    def role(self, parameter: torch.Tensor) -> Any:
        """Dimension and name on the axis model; None if the parameter is not split there."""
        return self._chosen.get(parameter)

    def _is_sharded(self, parameter: torch.Tensor) -> bool:
        return self._shards and parameter.dim() > 0

    def gathers(self, parameter: StageTensor) -> bool:
        return self._is_sharded(parameter)

    @torch.no_grad()
    def leaf(self, parameter: StageTensor) -> nn.Parameter:
        value: Any = parameter.value
        if not isinstance(value, DTensor):
            return super().leaf(parameter)
        if self._is_sharded(parameter):
            *_, (dim, axis, length) = dtensors.cuts_of(value)
            local: torch.Tensor = dtensors.gathered(memory_of(value), dim, axis, length)
            along_model = value.placements[1:]
            if along_model:
                mesh, size = dtensors.axes_of(value.device_mesh)[1], (value.shape, value.stride())
                value = dtensors.placed(local, mesh, along_model, size)
            else:
                value = local
        if not isinstance(value, DTensor):
            return nn.Parameter(value, parameter.requires_grad)
        leaf: nn.Parameter = plain_new(nn.Parameter, value, parameter.requires_grad)
        assert self.axis is not None
        self.axis.mark(leaf, Chosen(leaf, *parameter.role))
        return leaf

    def own_part(self, whole: torch.Tensor, parameter: StageTensor) -> torch.Tensor:
        *_, (dim, axis, _) = dtensors.cuts_of(parameter.value)
        part = dtensors.own(memory_of(whole), dim, axis)
        return dtensors.like(part.clone(memory_format=torch.contiguous_format), parameter.value)

    def plain(self, leaf: Any) -> Any:
        return whole(leaf) if isinstance(leaf, KINDS) else leaf
