"""Mesh: workers on two named axes. Rows of the batch lie on the axis data, parts of tensors on the axis model.

    paceline run -n 4 --strategy "mesh(data=2,model=2)" train.py

With the axis shard, too, it is a `ShardedMesh`, and with the axis pipe a `PipedMesh`.

A layout says which dimensions of the parameters are split over the axis model: a matrix product is computed in parts,
and summed over the axis where the split dimension is the contracted one. The layout changes time and memory, never
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.axes import Axes
from paceline.comm.coalesced import broadcast_all
from paceline.errors import UsageError
from paceline.script import chance
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.seams.stage import Stage
from paceline.spread.dtensors import is_sharded, like, split_like
from paceline.strategies.mesh import functions, operand_check
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.model_axis import ModelAxis
from paceline.strategies.mesh.piped_mesh import PipedMesh
from paceline.strategies.mesh.sharded_mesh import ShardedMesh
from paceline.strategies.mesh.sharded_parameter import ShardedParameter, shard_in_place, split_state, whole
from paceline.strategies.part_gradients import PartGradients
from paceline.torch_private import parameters_in


class Mesh(PartGradients):
    """Named axes: tensor parallelism on the axis model, and rows on the axis data.

    Take it if single layers are too large for one device, on devices with fast links. Costs two all-reduces of
    activations per split layer, in forward and in backward. When a peer dies, the collective that misses it raises.
    """

    name = "mesh"
    whole_models = False

    def __new__(
        cls, data: int = 0, model: int = 1, shard: int = 1, pipe: int = 1, layout: str = "", dimensions: str = ""
    ) -> Any:
        """With the axis pipe: a `PipedMesh`. With the axis shard: a `ShardedMesh`."""
        words = {"layout": layout, "dimensions": dimensions}
        told = {name: value for name, value in words.items() if value}
        if pipe < 1 or shard < 1:
            raise UsageError(
                f"mesh(shard={shard},pipe={pipe}) is not possible: each axis has at least one worker.",
                advice='Type: --strategy "mesh(data=2,shard=2)" or "mesh(data=2,pipe=2)"',
            )
        if pipe > 1:
            return PipedMesh(data, pipe, model, shard, **told)
        if shard > 1:
            return ShardedMesh(data, shard, model, **told)
        return super().__new__(cls, data=data, model=model, **told)

    def __init__(
        self, data: int = 0, model: int = 1, shard: int = 1, pipe: int = 1, layout: str = "", dimensions: str = ""
    ) -> None:
        """`data`, `model`, `shard` and `pipe`: the workers on each axis; data=0: as many as there are. `layout`:
        rules dimension:axis, with semicolons between them. `dimensions`: names for dimensions of parameters, as
        "pattern: name, name", with semicolons between them."""
        super().__init__()
        self.data, self.model = data, model
        self.layout = MeshLayout.of(layout, dimensions)
        self._axis: ModelAxis | None = None  # with several workers on it
        self._are_equal = False  # the model's weights are rank 0's at this moment

    def axes(self, workers: int) -> Axes:
        data = self.data or workers // max(self.model, 1)
        if self.model < 1 or data * self.model != workers:
            raise UsageError(
                f"mesh(data={self.data or '…'},model={self.model}) needs data × model workers; the run has {workers}.",
                advice=f"Type: -n {max(data, 1) * max(self.model, 1)}",
            )
        return Axes(data=data, tensor=self.model)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if self.model == 1 or stage.aside:
            return
        self._axis = ModelAxis(stage, self.layout, self._name_of)
        if stage.rows.world == 1:
            chance.share(stage)
            stage.subscribe(SameRows(stage, partial(self.split_parameters, equal=True)))
        stage.subscribe(self._axis.agreement)

    # -- placing ---------------------------------------------------------------------------------------------------

    def split_parameters(self, module: nn.Module, *, equal: bool) -> None:
        """Splits the parameters as the layout says. Every worker calls it. `equal`: their values were just made equal;
        otherwise they are compared at the next message."""
        if self._axis is None:
            return
        with torch.inference_mode(False):  # the first call may be an evaluation
            for chosen in self._axis.choose(module):
                parameter = chosen.parameter
                operand_check.note(parameter.grad if equal else (parameter, parameter.grad))
                shard_in_place(parameter, self._axis.mesh(parameter.device.type), chosen.dim)
                self._axis.mark(parameter, chosen)

    def place(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            split_state(optimizer, operand_check.note)

    def before_step(self, optimizer: Any) -> None:
        super().before_step(optimizer)
        split_state(optimizer, operand_check.note)

    def on_enough(self) -> None:
        super().on_enough()
        if self._axis is not None:
            self._axis.agreement.compare_last()

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Rows over the axis data, as under Mirrored; inside, functions on sharded parameters."""
        if self._axis is not None:
            self._axis.compare((args, kwargs))
            plain = self._axis.with_plain_outputs(plain)
        return self.stage.views.call(plain, module, args, kwargs)

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        make_plain(tensor)
        functions.write_back_arrays()
        return whole(tensor.detach()) if is_sharded(tensor) else tensor

    def part(self, value: torch.Tensor, like: Any) -> torch.Tensor:
        """What this worker keeps of a whole tensor."""
        if not is_sharded(like) or is_sharded(value):
            return value
        operand_check.note(value)
        return split_like(value, like)

    # -- gradients -------------------------------------------------------------------------------------------------

    def on_model(self, module: nn.Module) -> None:
        self._are_equal = True
        try:
            super().on_model(module)
        finally:
            self._are_equal = False

    def _meet_all(self, module: nn.Module) -> None:
        self.split_parameters(module, equal=self._are_equal)
        super()._meet_all(module)

    def _is_divided(self, parameter: Any) -> bool:
        return isinstance(parameter, ShardedParameter)

    def _part_of(self, parameter: Any) -> torch.Tensor:
        part: torch.Tensor = parameter.shard.to_local()
        return part

    def _part_of_grad(self, grad: Any, parameter: Any) -> torch.Tensor:
        part: torch.Tensor = grad.to_local()
        return part

    def _grad_of(self, part: torch.Tensor, parameter: Any) -> torch.Tensor:
        return like(part, parameter.shard)


class SameRows:
    """One worker on the axis data: all compute the same rows. There is no gradient to average, only weights to split,
    which are rank 0's at the first call; `model_agreement` compares what the workers do afterwards."""

    def __init__(self, stage: Stage, split: Callable[[nn.Module], None]) -> None:
        """`split` splits the parameters of a root module."""
        self._stage, self._split = stage, split
        self._met: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def on_model(self, module: nn.Module) -> None:
        if self._stage.aside:
            return
        tensors = (*parameters_in(module), *module.buffers())
        plain = [tensor for tensor in tensors if tensor not in self._met and not (is_sharded(tensor) or tensor.is_meta)]
        broadcast_all(self._stage.group, plain, "the model's weights")
        self._split(module)
        self._met.update(dict.fromkeys(parameters_in(module)))

    def before_forward(self, module: nn.Module) -> None:
        if any(parameter not in self._met for parameter in parameters_in(module)):  # added since the first call
            self.on_model(module)

    def before_step(self, optimizer: Any) -> None:
        split_state(optimizer, operand_check.note)
