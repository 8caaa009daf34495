"""A model's output that stays split over the axis model after the call: the logits of a split vocabulary.

A loss or an argmax over the classes is computed in parts (`class_losses`), so that no worker ever holds all logits.
Reshapes, conversions and a division by a temperature stay split. Before any other function the logits are gathered and
the tensor *becomes* a plain one, as do its views: the script's variable is then an ordinary torch.Tensor.

Every worker of the axis runs the same script: a gather never waits for a worker that does not come.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.errors import ScriptError
from paceline.script import memory, tree
from paceline.script.rows.origins import pass_note
from paceline.strategies.mesh import class_losses
from paceline.strategies.mesh.model_axis import whole_of
from paceline.strategies.mesh.sharded_parameter import shard_dim
from paceline.torch_private import OwnTensor, make_wrapper_subclass, no_torch_function, swap_tensor_impl

Step = Callable[[torch.Tensor], torch.Tensor]
FACTS = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "is_complex"),
    *("element_size", "__len__", "__hash__", "get_device"),
}
ASKED = {"shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_meta", "is_sparse", "is_quantized", "itemsize"}
ASKED |= {"retains_grad", "is_nested", "names"}
VIEWS = {"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "detach", "__getitem__"}
NEW = {"float", "double", "mul", "div", "__mul__", "__rmul__", "__truediv__", "true_divide", "clone"}
LOSSES = {"cross_entropy", "nll_loss", "log_softmax", "argmax"}


class SplitOutput(OwnTensor):
    """`part` is the DTensor. `steps` made this view of `base`, which knows its views."""

    part: DTensor
    base: SplitOutput | None  # None: it is no view
    steps: tuple[Step, ...]
    views: list[weakref.ref[SplitOutput]]

    @staticmethod
    def __new__(
        cls: type[SplitOutput], part: DTensor, view_of: SplitOutput | None = None, step: Step | None = None
    ) -> SplitOutput:
        with no_torch_function():
            made: SplitOutput = make_wrapper_subclass(
                cls, part.shape, strides=part.stride(), dtype=part.dtype, device=part.device
            )
        made.part, made.base, made.steps, made.views = part, None, (), []
        if view_of is not None and step is not None:
            made.base = view_of if view_of.base is None else view_of.base
            made.steps = (*view_of.steps, step)
            made.base.views.append(weakref.ref(made))
        return made

    requires_grad = property(lambda self: self.part.requires_grad)
    grad_fn = property(lambda self: self.part.grad_fn)
    is_leaf = property(lambda self: self.part.is_leaf)

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(f, "__name__", "")
        if name in FACTS or (name == "__get__" and getattr(f.__self__, "__name__", "") in ASKED):
            with no_torch_function():
                return f(*args, **kwargs)
        me = args[0] if args else kwargs.get("input")
        if name == "untyped_storage":
            return me.part.to_local().untyped_storage()
        others = [leaf for leaf in tree.leaves((args[1:], kwargs)) if isinstance(leaf, torch.Tensor)]
        if isinstance(me, SplitOutput) and not any(isinstance(leaf, SplitOutput) and leaf is not me for leaf in others):
            found = _in_parts(f, name, me, args, kwargs, others)
            if found is not NotImplemented:
                return found
        make_plain((args, kwargs))
        return f(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, f: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise ScriptError(
            f"{f} was called from compiled code with a model's output that --strategy mesh has split over the workers.",
            advice="Gather every output at once: --gather-below 1000000000000",
        )


def _in_parts(f: Any, name: str, me: SplitOutput, args: Any, kwargs: Any, others: list[torch.Tensor]) -> Any:
    """The function on this worker's part; NotImplemented if it needs the whole tensor."""
    if name in LOSSES:
        args, kwargs = tree.replace((args, kwargs), lambda leaf: leaf.part if leaf is me else leaf)
        loss = class_losses.KNOWN.get(f) or class_losses.KNOWN.get(getattr(f, "__wrapped__", None))
        found = NotImplemented if loss is None else loss(*args, **kwargs)
        return SplitOutput(found) if isinstance(found, DTensor) else found
    if (name not in VIEWS and name not in NEW) or any(other.dim() for other in others) or not args or args[0] is not me:
        return NotImplemented
    rest = args[1:]
    try:
        with no_torch_function():
            found = f(me.part, *rest, **kwargs)
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError) as error:
        if memory.ran_out(error):  # the other workers would not gather
            raise
        return NotImplemented  # torch's own words come from the plain tensor
    dim = shard_dim(found) if isinstance(found, DTensor) else None
    if dim is None or found.to_local().shape[dim] * found.device_mesh.size() != found.shape[dim]:
        return NotImplemented
    return SplitOutput(found, me, lambda whole: f(whole, *rest, **kwargs)) if name in VIEWS else SplitOutput(found)


def make_plain(value: Any) -> Any:
    """Every `SplitOutput` in the nest becomes a plain tensor, in place; returns the nest. Called by every worker of the
    axis; waits for all of them."""
    for leaf in tree.leaves(value):
        if isinstance(leaf, SplitOutput):
            _become_plain(leaf)
    return value


def _become_plain(output: SplitOutput) -> None:
    first = output if output.base is None else output.base
    alive = [first, *(view for known in first.views if (view := known()) is not None)]
    first.views.clear()  # torch refuses to exchange tensors that have weak references
    # The script may meet an unknown function under no_grad (a metric), and compute its loss afterwards.
    graph = any(member.requires_grad for member in alive)
    with torch.inference_mode(not graph and torch.is_inference_mode_enabled()), torch.set_grad_enabled(graph):
        base = whole_of(first.part)
        pass_note(first.part, base)
        wholes = [_replayed(member, base) for member in alive]
    for member, whole in zip(alive, wholes, strict=True):
        member.__class__, whole.__class__ = torch.Tensor, SplitOutput  # type: ignore[assignment]
        member.__dict__, whole.__dict__ = whole.__dict__, {}
        swap_tensor_impl(member, whole)


def _replayed(member: SplitOutput, whole: torch.Tensor) -> torch.Tensor:
    requires = member.requires_grad
    for step in member.steps:
        whole = step(whole)
    return whole if requires or not whole.requires_grad else whole.detach()
