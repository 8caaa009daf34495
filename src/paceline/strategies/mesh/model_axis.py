"""The axis model, on one worker: who is on it, which parameters it splits, and what the script gets of a model's call.

What holds the split parameters between calls is a strategy's affair: `Mesh` keeps them on every worker of the axis
data, `ShardedMesh` divides them once more over the axis shard.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import register_sharding

from paceline.comm.group import Group
from paceline.comm.torch_backend import torch_mesh
from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.patches import patch
from paceline.script.proof.ways import knows_more
from paceline.script.rows.origins import show_apart
from paceline.script.seams import hidden_group
from paceline.script.seams.stage import Stage
from paceline.spread.dtensors import connect, is_sharded
from paceline.spread.functions import is_torchs_own, patch_dtensors
from paceline.strategies.mesh import functions, transforms
from paceline.strategies.mesh.dimensions import bytes_of, names_of
from paceline.strategies.mesh.fused_heads import FusedHeads
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.model_agreement import ModelAgreement
from paceline.strategies.mesh.sharded_parameter import is_in_use, whole
from paceline.strategies.mesh.split_output import SplitOutput
from paceline.torch_private import is_any_true, is_compiled, uncompiled
from paceline.units import size

KINDS = (DTensor, FusedHeads)


class Chosen(NamedTuple):
    """A parameter that is split along this dimension, which has this name in the layout."""

    parameter: nn.Parameter
    dim: int
    name: str


class ModelAxis:
    """Every worker makes one, and calls each method in the same order. If a peer is gone, a message raises."""

    def __init__(self, stage: Stage, layout: MeshLayout, name_of: Callable[[nn.Module], str]) -> None:
        self._stage, self._layout = stage, layout
        self.size = stage.axes.tensor
        self.workers: Group = stage.group.along("tensor", stage.axes.members(stage.group.rank, "tensor"))
        self.workers.ending, self.workers.together = stage.ending, stage.together
        self._meshes: dict[str, DeviceMesh] = {}  # of all axes, by kind of device
        self._calls: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._told = False
        _ask_for_whole_tensors()
        self.agreement = ModelAgreement(stage, self.workers, name_of)

    # -- placing ---------------------------------------------------------------------------------------------------

    def root(self, device: str) -> DeviceMesh:
        """The mesh of all axes on this kind of device."""
        if device not in self._meshes:
            names = [axis for axis in ("pipe", "shard") if getattr(self._stage.axes, axis) > 1]
            self._meshes[device] = torch_mesh.mesh(
                self._stage.group, self._stage.axes, device, "data", "tensor", *names
            )
            connect(self.mesh(device), self.workers)
        return self._meshes[device]

    def mesh(self, device: str) -> DeviceMesh:
        """The axis itself."""
        return self.root(device)["tensor"]

    def choose(self, module: nn.Module, *, but: Container[nn.Parameter] = ()) -> list[Chosen]:
        """The parameters that the layout splits, and that are not split yet, but these. A notice says how many the
        first time."""
        if any(is_compiled(child) or isinstance(child, torch.jit.ScriptModule) for child in module.modules()):
            self._stage.views.warn(
                f"{type(uncompiled(module)).__name__} is compiled: its parameters are not split, and the workers of "
                "the axis model compute the same."
            )
            return []
        parameters = list(names_of(module, self._layout))
        self._layout.check_names(dim for _, _, dims in parameters for dim in dims)
        chosen = [one for one in self._fitting(parameters) if one.parameter not in but]
        if chosen and not self._told:
            self._told = True
            told = f"Mesh: {len(chosen)} of {len(parameters)} parameters are split over {self.size} workers"
            if (
                self._stage.axes.shard == self._stage.axes.pipe == 1
            ):  # otherwise another notice says what a worker holds
                total, cut = sum(bytes_of(p) for _, p, _ in parameters), sum(bytes_of(p) for p, *_ in chosen)
                told += f"; each holds {size(total - cut + cut // self.size)} of {size(total)} of weights"
            self._stage.pulse.notice(f"{told}.")
        return chosen

    def _fitting(self, parameters: list[tuple[str, nn.Parameter, tuple[str, ...]]]) -> Iterator[Chosen]:
        for name, parameter, dims in parameters:
            if is_sharded(parameter) or nn.parameter.is_lazy(parameter) or parameter.is_meta:
                continue
            dim = self._layout.dim_on_model(name, dims, tuple(parameter.shape), self.size)
            if dim is None or type(parameter) is not nn.Parameter:
                continue
            if is_in_use(parameter):
                self._stage.views.warn(f"{name} is not split: a graph or a hook of the script refers to it already.")
                continue
            yield Chosen(parameter, dim, dims[dim])

    def mark(self, parameter: Any, chosen: Chosen) -> None:
        """Tells the layers what a split parameter is for (see `layers`)."""
        parameter.fused = chosen.name == "qkv" and chosen.dim == 0  # query, key and value, one below the other
        parameter.vocab = chosen.name == "vocab" and chosen.dim == 0  # a row for each word: a linear layer gives logits
        parameter.tokens = self._layout.axis_of.get("tokens") == "model"

    # -- calls -----------------------------------------------------------------------------------------------------

    def compare(self, given: Any) -> None:
        """A model is about to be called with these arguments, which must be equal if the batch is whole."""
        if not self._stage.views.batch_is_cut:
            self.agreement.call(given)

    def with_plain_outputs(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with plain outputs; but large logits of a split vocabulary stay split."""
        if plain not in self._calls:
            self._calls[plain] = self._with_plain_outputs(plain)
        return self._calls[plain]

    def _with_plain_outputs(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        same_rows = self._stage.rows.world == 1

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
            if same_rows and tree.attributes(output) is not None:
                return output
            # An object among the arguments that the call has filled and returns is the script's own, too.
            given = [v for v in (*args, *kwargs.values()) if not isinstance(v, torch.Tensor)]
            filled = {id(value): value for value in given if tree.attributes(value) is not None}
            shown = tree.replace(output, self._outside, (_kept(output) if same_rows else {}) | filled)
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
        stage = self._stage
        size = leaf.numel() * leaf.element_size() * stage.rows.world
        large = size >= stage.run.gather_below and not stage.views.gathers
        if large and getattr(leaf, "is_logits", False) and not leaf.retains_grad:
            return SplitOutput(leaf)  # type: ignore[arg-type]
        return whole(leaf)


def _kept(output: Any) -> dict[int, Any]:
    """The objects in an output that are not copied."""
    if not isinstance(output, (tuple, list, Mapping)):
        return {}
    inner = output.values() if isinstance(output, Mapping) else output
    return {id(value): value for value in inner if tree.attributes(value) is not None}


@cache
def _ask_for_whole_tensors() -> None:
    """From now on DTensors behave as whole tensors in this process, and the script does not see the process group."""
    hidden_group.hide()
    patch_dtensors(functions.answer, whole)
    transforms.find()
    # What DTensor cannot do raises, and is then done with whole tensors: nothing to report.
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: "run meta for" not in str(record.msg))
    patch(nn.Parameter, "__new__", _make_parameter)
    functions.assign_whole_data()
    # torch.autograd.detect_anomaly asks it of gradients.
    register_sharding(is_any_true)(lambda x: [([Replicate()], [Replicate()])])


plain_new = nn.Parameter.__new__


def _make_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """A parameter that the script makes of a split tensor is whole; it is split when its model is called."""
    if is_sharded(data) and not is_torchs_own(sys._getframe(1)):  # FSDP2 makes parameters of parts
        with torch.no_grad():
            data = whole(data)
    return plain_new(cls, data, requires_grad)
