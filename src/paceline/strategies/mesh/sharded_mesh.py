"""The axis shard of a mesh, with the axes data and model: each copy of the model is sharded along shard, by FSDP2.

    paceline run -n 8 --strategy "mesh(data=2,shard=2,model=2)" train.py

A layer that the layout splits over the axis model is a DTensor on that axis before FSDP2 gets it. FSDP2 cuts its part
once more: between calls a worker keeps 1/(shard × model) of it. In a call FSDP2 gathers it along shard, and the layer
computes with a parameter that is split over the axis model, as under `Mesh`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.tensor import Shard

from paceline.comm.axes import Axes
from paceline.errors import UsageError
from paceline.script.seams.stage import Stage
from paceline.spread.dtensors import connect, split
from paceline.spread.stage_tensor import put
from paceline.strategies.mesh import functions, operand_check
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.model_axis import ModelAxis, plain_new
from paceline.strategies.mesh.sharded_parameter import whole
from paceline.strategies.sharded import Sharded
from paceline.strategies.shards.rules import Beside
from paceline.strategies.shards.units import left_whole


class ShardedMesh(Sharded):
    """When a peer dies, the message that misses it raises."""

    name = "mesh"

    def __init__(
        self, data: int = 0, shard: int = 2, model: int = 1, *, layout: str = "", dimensions: str = ""
    ) -> None:
        """`data`, `shard` and `model`: the number of workers on each axis; data=0: as many as there are. `layout` and
        `dimensions`: as of `Mesh`."""
        super().__init__()
        self.data, self.shard, self.model = data, shard, model
        self.layout = MeshLayout.of(layout, dimensions)
        self._axis: ModelAxis | None = None  # with several workers on it

    def axes(self, workers: int) -> Axes:
        copy = self.shard * max(self.model, 1)  # workers that hold one copy of the model
        self.replicas = self.data or workers // copy
        if self.model < 1 or self.replicas * copy != workers:
            sizes = {"data": self.data or "…", "shard": self.shard} | ({"model": self.model} if self.model != 1 else {})
            typed = ",".join(f"{axis}={size}" for axis, size in sizes.items())
            raise UsageError(
                f"mesh({typed}) needs {' × '.join(sizes)} workers; the run has {workers}.",
                advice=f"Type: -n {max(self.replicas, 1) * copy}",
            )
        return Axes(data=self.replicas, shard=self.shard, tensor=self.model)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if self.model > 1 and not stage.aside:
            self._axis = ModelAxis(stage, self.layout, self._name_of)
            stage.subscribe(self._axis.agreement)

    def on_enough(self) -> None:
        super().on_enough()
        if self._axis is not None:
            self._axis.agreement.compare_last()

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._axis is not None:
            self._axis.compare((args, kwargs))
            plain = self._axis.with_plain_outputs(plain)
        return super().call(plain, module, args, kwargs)

    # -- placing ---------------------------------------------------------------------------------------------------

    def _root_mesh(self, device: str) -> Any:
        if self._axis is None:
            return super()._root_mesh(device)
        root = self._axis.root(device)
        connect(root["shard", "tensor"], self._parts, self._axis.workers)
        return root

    def _split(self, module: nn.Module) -> dict[str, Callable[[Any], None]]:
        """The module gets, in place of each parameter that the layout splits, the own part along the axis model."""
        if (axis := self._axis) is None:
            return {}
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        about: dict[str, Callable[[Any], None]] = {}
        for chosen in axis.choose(module, but=left_whole(module)):
            old = chosen.parameter
            operand_check.note(old.grad)
            part = split(old, axis.mesh(old.device.type), (Shard(chosen.dim),))
            new = plain_new(nn.Parameter, part, old.requires_grad)
            for inner in module.modules():
                for name in [name for name, p in inner._parameters.items() if p is old]:
                    put(inner, name, new)
            about[names[id(old)]] = partial(axis.mark, chosen=chosen)
        return about

    def _beside(self) -> Beside | None:
        return None if self._axis is None else Beside(functions.answer, whole)
