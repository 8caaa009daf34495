"""Mesh: workers on two named axes. Rows of the batch lie on the axis data, parts of tensors on the axis model.

    paceline run -n 4 --strategy "mesh(data=2,model=2)" train.py

The axis shard, in place of model, is in `hybrid`; the axis pipe, in place of model, is a `Pipeline` with replicas.

A layout says which dimensions of the parameters are split over the axis model: a matrix product is computed in parts,
and summed over the axis where the split dimension is the contracted one. The layout changes time and memory, never
results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import register_sharding
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.axes import Axes
from paceline.comm.coalesced import broadcast_all
from paceline.comm.group import Group
from paceline.comm.torch_backend import torch_mesh
from paceline.errors import ScriptError, UsageError
from paceline.script import chance, tree
from paceline.script.patches import patch
from paceline.script.proof.ways import knows_more
from paceline.script.rows.origins import show_apart
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.seams import hidden_group
from paceline.script.seams.stage import Stage
from paceline.spread.dtensors import connect, is_sharded, like, split_like
from paceline.spread.functions import patch_dtensors
from paceline.strategies.mesh import functions, operand_check, transforms
from paceline.strategies.mesh.dimensions import bytes_of, names_of
from paceline.strategies.mesh.fused_heads import FusedHeads
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.model_agreement import ModelAgreement
from paceline.strategies.mesh.sharded_parameter import (
    ShardedParameter,
    is_in_use,
    shard_in_place,
    split_state,
    whole,
)
from paceline.strategies.mesh.split_output import SplitOutput
from paceline.strategies.part_gradients import PartGradients
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.sharded import Sharded
from paceline.torch_private import is_any_true, is_compiled, parameters_in, plain_data, uncompiled
from paceline.units import size

KINDS = (DTensor, FusedHeads)


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
        """With the axis shard: a `ShardedMesh`. With the axis pipe: a `Pipeline`."""
        if shard == pipe == 1:
            words = {"layout": layout, "dimensions": dimensions}
            told = {name: value for name, value in words.items() if value}
            return super().__new__(cls, data=data, model=model, **told)
        if model != 1 or layout or dimensions or shard < 1 or pipe < 1 or (shard > 1 and pipe > 1):
            raise UsageError(
                f"mesh(model={model},shard={shard},pipe={pipe}) is not possible: beside data, a mesh has the axis "
                "model, with a layout, or the axis shard, or the axis pipe.",
                advice='Type: --strategy "mesh(data=2,shard=2)", "mesh(data=2,model=2)" or "mesh(data=2,pipe=2)"',
            )
        return ShardedMesh(data, shard) if shard > 1 else Pipeline(stages=pipe, data=data)

    def __init__(
        self, data: int = 0, model: int = 1, shard: int = 1, pipe: int = 1, layout: str = "", dimensions: str = ""
    ) -> None:
        """`data`, `model`, `shard` and `pipe`: the workers on each axis; data=0: as many as there are. `layout`:
        rules dimension:axis, with semicolons between them. `dimensions`: names for dimensions of parameters, as
        "pattern: name, name", with semicolons between them."""
        super().__init__()
        self.data, self.model = data, model
        self.layout = MeshLayout.of(layout, dimensions)
        self._mesh: Any = None  # the axis model as a DeviceMesh
        self._along_model: Group | None = None
        self._calls: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._told = False
        self._same_rows: SameRows | None = None  # with one worker on the axis data
        self._model_agreement: ModelAgreement | None = None  # with several on the axis model
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
        _ask_for_whole_tensors()
        if stage.rows.world == 1:
            chance.share(stage)
            self._same_rows = SameRows(stage, partial(self.split_parameters, equal=True))
            stage.subscribe(self._same_rows)
        self._model_agreement = ModelAgreement(stage, self._workers_of_axis(), self._name_of)
        stage.subscribe(self._model_agreement)

    # -- placing ---------------------------------------------------------------------------------------------------

    def split_parameters(self, module: nn.Module, *, equal: bool) -> None:
        """Splits the parameters as the layout says. Every worker calls it. `equal`: their values were just made equal;
        otherwise they are compared at the next message."""
        if self.model == 1:
            return
        if any(is_compiled(child) or isinstance(child, torch.jit.ScriptModule) for child in module.modules()):
            self.stage.views.warn(
                f"{type(uncompiled(module)).__name__} is compiled: its parameters are not split, and the workers of "
                "the axis model compute the same."
            )
            return
        parameters = list(names_of(module, self.layout))
        self.layout.check_names(dim for _, _, dims in parameters for dim in dims)
        chosen: list[tuple[nn.Parameter, int, str]] = []
        for name, parameter, dims in parameters:
            if is_sharded(parameter) or nn.parameter.is_lazy(parameter) or parameter.is_meta:
                continue
            dim = self.layout.dim_on_model(name, dims, tuple(parameter.shape), self.model)
            if dim is None or type(parameter) is not nn.Parameter:
                continue
            if is_in_use(parameter):
                self.stage.views.warn(f"{name} is not split: a graph or a hook of the script refers to it already.")
                continue
            chosen.append((parameter, dim, dims[dim]))
        with torch.inference_mode(False):  # the first call may be an evaluation
            for parameter, dim, name in chosen:
                operand_check.note(parameter.grad if equal else (parameter, parameter.grad))
                shard_in_place(parameter, self._axis(parameter.device.type), dim, name)
                cast(Any, parameter).tokens = self.layout.axis_of.get("tokens") == "model"
        if chosen and not self._told:
            self._told = True
            total, cut = (
                sum(map(bytes_of, found)) for found in ([p for _, p, _ in parameters], [p for p, *_ in chosen])
            )
            self.stage.pulse.notice(
                f"Mesh: {len(chosen)} of {len(parameters)} parameters are split over {self.model} workers; each holds "
                f"{size(total - cut + cut // self.model)} of {size(total)} of weights."
            )

    def _axis(self, device: str) -> Any:
        if self._mesh is None or self._mesh.device_type != device:
            stage = self.stage
            self._mesh = torch_mesh.mesh(stage.group, stage.axes, device, "data", "tensor")["tensor"]
            connect(self._mesh, self._workers_of_axis())
        return self._mesh

    def _workers_of_axis(self) -> Group:
        """The workers of this worker's axis model."""
        if self._along_model is None:
            stage = self.stage
            self._along_model = stage.group.along("tensor", stage.axes.members(stage.group.rank, "tensor"))
            self._along_model.ending, self._along_model.together = stage.ending, stage.together
        return self._along_model

    def place(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            split_state(optimizer, operand_check.note)

    def before_step(self, optimizer: Any) -> None:
        super().before_step(optimizer)
        split_state(optimizer, operand_check.note)

    def on_enough(self) -> None:
        super().on_enough()
        if self._model_agreement is not None:
            self._model_agreement.compare_last()

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Rows over the axis data, as under Mirrored; inside, functions on sharded parameters. Outputs are plain, but
        large logits of a split vocabulary stay split."""
        if self._model_agreement is not None and not self.stage.views.batch_is_cut:
            self._model_agreement.call((args, kwargs))
        if plain not in self._calls:
            self._calls[plain] = self._with_plain_outputs(plain)
        return self.stage.views.call(self._calls[plain], module, args, kwargs)

    def _with_plain_outputs(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (known := next(filter(knows_more, tree.leaves((args, kwargs))), None)) is not None:
                raise ScriptError(
                    f"The model gets a {type(known).__name__}, which knows more of its rows than their numbers, and "
                    "under --strategy mesh its outputs are plain tensors.",
                    advice="Give the model plain tensors, or choose another strategy: --strategy mirrored",
                )
            output = plain(module, *args, **kwargs)
            if not any(isinstance(leaf, KINDS) for leaf in tree.leaves(output)):
                return output
            # An object in the output stays the script's own (a cache), and its tensors behave as whole ones. Slices of
            # them are put together if there are several workers along the axis data.
            if self._same_rows is not None and tree.attributes(output) is not None:
                return output
            # An object among the arguments that the call has filled and returns is the script's own, too.
            given = [v for v in (*args, *kwargs.values()) if not isinstance(v, torch.Tensor)]
            filled = {id(value): value for value in given if tree.attributes(value) is not None}
            shown = tree.replace(output, self._outside, self._kept(output) | filled)
            pairs = zip(tree.leaves(output), tree.leaves(shown), strict=True)
            apart = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and a.grad_fn is not None]
            given = [None if a is b else b.local if isinstance(b, SplitOutput) else b for a, b in apart]
            show_apart(given, [a for a, _ in apart], "under --strategy mesh")
            return shown

        return call

    def _outside(self, leaf: Any) -> Any:
        """What the script gets of an output: a plain tensor, or split logits if they are large."""
        if not isinstance(leaf, KINDS):
            return leaf
        stage = self.stage
        size = leaf.numel() * leaf.element_size() * stage.rows.world
        large = size >= stage.run.gather_below and not stage.views.gathers
        if large and getattr(leaf, "is_logits", False) and not leaf.retains_grad:
            return SplitOutput(leaf)  # type: ignore[arg-type]
        return whole(leaf)

    def _kept(self, output: Any) -> dict[int, Any]:
        """The objects in an output that are not copied."""
        if self._same_rows is None or not isinstance(output, (tuple, list, Mapping)):
            return {}
        inner = output.values() if isinstance(output, Mapping) else output
        return {id(value): value for value in inner if tree.attributes(value) is not None}

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


@cache
def _ask_for_whole_tensors() -> None:
    """From now on DTensors behave as whole tensors in this process, and the script does not see the process group."""
    hidden_group.hide()
    patch_dtensors(functions.answer, whole)
    transforms.find()
    # What DTensor cannot do raises, and is then done with whole tensors: nothing to report.
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: "run meta for" not in str(record.msg))
    patch(nn.Parameter, "__new__", _make_parameter)
    patch(torch.Tensor, "data", property(plain_data.__get__, functions.assign_data))
    # torch.autograd.detect_anomaly asks it of gradients.
    register_sharding(is_any_true)(lambda x: [([Replicate()], [Replicate()])])


plain_new = nn.Parameter.__new__


def _make_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """A parameter that the script makes of a split tensor is whole; it is split when its model is called."""
    with torch.no_grad():
        data = whole(data) if is_sharded(data) else data
    return plain_new(cls, data, requires_grad)


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


class ShardedMesh(Sharded):
    """When a peer dies, the message that misses it raises."""

    name = "mesh"

    def __init__(self, data: int = 0, shard: int = 2) -> None:
        """`data` and `shard`: the number of workers on each axis; data=0: as many as there are."""
        super().__init__()
        self.data, self.shard = data, shard

    def axes(self, workers: int) -> Axes:
        self.replicas = self.data or workers // self.shard
        if self.replicas * self.shard != workers:
            raise UsageError(
                f"mesh(data={self.data or '…'},shard={self.shard}) needs data × shard workers; the run has {workers}.",
                advice=f"Type: -n {max(self.replicas, 1) * self.shard}",
            )
        return super().axes(workers)
