"""What functions of torch do with sharded tensors: the answer is always that of the whole tensor.

    kind         functions                                 how
    facts        shape, dtype, grad, hooks …               of the whole tensor, nothing is computed
    elementwise  add, gelu, lerp_, zeros_like …            each worker its shard; DTensor cuts plain operands
    layers       linear, embedding, dropout, attention     in `layers`: on shards, with one collective where needed
    losses       cross_entropy, nll_loss, log_softmax      in `class_losses`: over split classes
    reductions   sum, norm                                 DTensor: own shard, then one small all-reduce
    views        view, transpose, unbind …                 DTensor, where the split dimension survives
    lists        _foreach_…, _fused_… of optimizers        own shards of all tensors
    all others                                             gather the whole tensor, and go on with a plain one

So numbers never depend on which functions are known, only time and memory do. A result that is not split (a sum over
the model axis, or equal on all workers) leaves as a plain tensor: each DTensor is split along a dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from paceline.errors import ScriptError
from paceline.script import memory, tree
from paceline.script.patches import patch
from paceline.script.rows.crossings import HALF
from paceline.script.rows.spread_tensor import make_plain
from paceline.spread.dtensors import (
    dtensor_of,
    everywhere,
    is_sharded,
    like,
    local_of,
    part_like,
    part_of,
    relaid,
    split_like,
    whole_of,
)
from paceline.spread.functions import ELEMENTWISE, FACTS, attribute_of, is_in_place, name_of, of_lists, root_of
from paceline.spread.write_back import LentCopies
from paceline.strategies.mesh import class_losses, layers, operand_check, transforms
from paceline.strategies.mesh.sharded_parameter import (
    ShardedParameter,
    alias,
    sharded,
    whole,
)
from paceline.strategies.mesh.split_output import SplitOutput
from paceline.torch_private import is_transformed, no_torch_function, plain_data

Plain = Callable[..., Any]
LAYERS = layers.KNOWN | class_losses.KNOWN
PLAIN_GRADIENTS = torch.autograd.grad  # before `instrument` patches it

# Attributes that are results, not facts.
COMPUTED = {"T", "mT", "H", "mH", "real", "imag"}
REDUCTIONS = {"sum", "norm", "vector_norm"}
VIEWS = {
    *("view", "reshape", "flatten", "unflatten", "transpose", "permute", "movedim", "unsqueeze", "squeeze"),
    *("unbind", "chunk", "split", "swapaxes", "matmul", "softmax", "view_as", "getitem"),
}
PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "softmax"}
CONVERSIONS = {"to", "cpu", "cuda", "float", "double", "half", "bfloat16", "type"}


def answer(f: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `f` returns for these arguments, of which one or more are sharded."""
    if SplitOutput in types:
        make_plain((args, kwargs))
    _copies.write_back()
    kind, name = _kind(f)
    if is_transformed() and kind is not _fact:
        args, kwargs = transforms.with_wholes((args, kwargs))
        return f(*args, **kwargs)
    if (noted := ENTERING.get(kind)) is not None:
        noted(args, kwargs)
    return kind(f, name, args, kwargs)


def _kind(f: Any) -> tuple[Any, str]:
    if f not in _KINDS:
        _KINDS[f] = _find_kind(f)
    return _KINDS[f]


def _find_kind(f: Any) -> tuple[Any, str]:
    name = name_of(f)
    if name in ("__get__", "__set__", "__delete__"):
        of = attribute_of(f.__self__)
        if of in COMPUTED:
            return _gathered, of
        if of in ("data", "grad"):
            return {"data__get__": _get_data, "data__set__": _set_data, "grad__set__": _set_grad}.get(
                of + name, _fact
            ), of
        return _fact, of
    layer = LAYERS.get(f) or LAYERS.get(getattr(f, "__wrapped__", None))
    if layer is not None:
        return lambda f, name, args, kwargs: _layer(layer, f, name, args, kwargs), name
    if name in FACTS:
        return _fact, name
    if name == "grad":
        return _gradients, name
    if name == "detach":
        return lambda f, name, args, kwargs: alias(dtensor_of(args[0])), name
    if name in CONVERSIONS:
        return _converted, name
    if name.startswith(("_foreach_", "_fused_")):
        return _listed, name
    root = root_of(name)
    if is_in_place(name):
        return (_changed if root in ELEMENTWISE else _rewritten), name
    for kind, names in ((_elementwise, ELEMENTWISE), (_reduced, REDUCTIONS), (_viewed, VIEWS)):
        if root in names:
            return kind, name
    return _gathered, name


_KINDS: dict[Any, tuple[Any, str]] = {}


def _mesh(args: Any) -> DeviceMesh:
    return next(dtensor_of(leaf).device_mesh for leaf in tree.leaves(args) if is_sharded(leaf))


def _fact(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    with no_torch_function():
        return f(*args, **kwargs)


def _gradients(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """torch.autograd.grad: the seam has been passed, and the graph has the parameters themselves."""
    return _fact(PLAIN_GRADIENTS, name, args, kwargs)


def _gathered(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    return _copies.on_wholes(f, args, kwargs)


def _layer(layer: Plain, f: Any, name: str, args: Any, kwargs: Any) -> Any:
    found = layer(*args, **kwargs)
    return _gathered(f, name, args, kwargs) if found is NotImplemented else found


def _as_shards(args: Any, kwargs: Any) -> Any:
    mesh = _mesh((args, kwargs))

    def put(leaf: Any) -> Any:
        if is_sharded(leaf):
            return sharded(leaf)
        return everywhere(leaf, mesh) if isinstance(leaf, torch.Tensor) else leaf

    return tree.replace((args, kwargs), put)


def _settled(found: Any) -> Any:
    """A result that is not split leaves as a plain tensor."""
    if isinstance(found, DTensor):
        return found if isinstance(found.placements[0], Shard) else whole_of(found)
    return type(found)(map(_settled, found)) if isinstance(found, (tuple, list)) else found


def _pointwise(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    given, named = _as_shards(args, kwargs)
    try:
        with no_torch_function():
            found = f(*given, **named)
    except (RuntimeError, NotImplementedError) as error:  # an operand that DTensor does not know
        if memory.ran_out(error):  # the other workers would not gather
            raise
        return _gathered(f, name, args, kwargs)
    return _settled(found)


def _elementwise(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Of a single tensor each worker computes its part: DTensor lacks the gradients of some functions."""
    tensors = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    in_place, flags = kwargs.get("inplace"), [flag for key, flag in kwargs.items() if key != "inplace"]
    if len(tensors) == 1 and not any(flag is True for flag in (*args, *flags)):
        target = tensors[0]
        if in_place and isinstance(target, ShardedParameter):
            _refuse_leaf(target)
        own = local_of(shard := sharded(target))
        part = own.clone() if in_place else own
        given, named = tree.replace((args, kwargs), lambda leaf: part if leaf is target else leaf)
        found = f(*given, **named)
        if found is own:
            return target
        is_part = isinstance(found, torch.Tensor) and found.shape == part.shape and found.stride() == part.stride()
        if is_part and found.device == part.device:
            if not in_place:
                return like(found, shard)
            with no_torch_function():
                shard.copy_(like(found, shard))
            return target
    return _pointwise(f, name, args, kwargs)


def _reduced(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A norm in parts has no gradient here. In half precision the parts would be rounded before they are added."""
    if any(is_sharded(leaf) and leaf.dtype in HALF for leaf in tree.leaves(args)):
        return _gathered(f, name, args, kwargs)
    learns = torch.is_grad_enabled() and any(is_sharded(leaf) and leaf.requires_grad for leaf in tree.leaves(args))
    return (_gathered if learns and name != "sum" else _pointwise)(f, name, args, kwargs)


def _viewed(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Only on tensors of which each worker has one of equal parts: DTensor splits others unevenly. A view that is not
    split is one of a copy, into which the script may write. Products in half precision: see `_reduced`."""
    if name in PRODUCTS and any(is_sharded(leaf) and leaf.dtype in HALF for leaf in tree.leaves(args)):
        return _gathered(f, name, args, kwargs)
    found = _pointwise(f, name, args, kwargs)
    is_split = all(is_sharded(leaf) for leaf in (found if isinstance(found, (list, tuple)) else (found,)))
    return found if is_split or name in PRODUCTS else _gathered(f, name, args, kwargs)


def _changed(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A pointwise change in place."""
    target = args[0]
    if not is_sharded(target):
        return _gathered(f, name, args, kwargs)
    if isinstance(target, ShardedParameter):
        _refuse_leaf(target)
    (_, *given), named = _as_shards(args, kwargs)
    try:
        with no_torch_function():
            f(alias(target.shard) if isinstance(target, ShardedParameter) else target, *given, **named)
    except (RuntimeError, NotImplementedError) as error:  # as in `_pointwise`
        if memory.ran_out(error):
            raise
        return _rewritten(f, name, args, kwargs)
    return target


def _rewritten(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Any other change in place: of the whole tensor, of which each worker keeps its part."""
    target = args[0] if args else next(iter(kwargs.values()))  # torch.nn.init names its tensor
    if isinstance(target, (list, tuple)):  # those of torch.amp
        return _copies.on_wholes(f, args, kwargs, target)
    if not is_sharded(target):
        return _gathered(f, name, args, kwargs)
    if isinstance(target, ShardedParameter):
        if getattr(f, "__module__", "") != "torch.nn.init":  # whose functions switch gradients off
            _refuse_leaf(target)
    elif target.requires_grad and torch.is_grad_enabled():
        raise ScriptError(
            f"{name} changes a tensor in place that has a graph and that the strategy mesh has split over the workers.",
            advice="Use the function without the trailing underscore, or --strategy mirrored.",
        )
    aim = alias(dtensor_of(target))
    args, kwargs = tree.replace((args, kwargs), lambda leaf: aim if leaf is target else leaf)
    with torch.no_grad():
        found = _copies.on_wholes(f, args, kwargs, (aim,))
    return target if found is aim else found


def _refuse_leaf(parameter: ShardedParameter) -> None:
    if parameter.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")


def _converted(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A conversion that changes nothing returns the tensor itself, as torch does."""
    target = args[0]
    args, kwargs = tree.replace((args, kwargs), lambda leaf: _empty(leaf) if leaf is not target else leaf)
    if not is_sharded(target):
        return f(*args, **kwargs)
    probe = f(_empty(target), *args[1:], **kwargs)
    if not isinstance(probe, torch.Tensor):
        return _gathered(f, name, args, kwargs)
    if (probe.dtype, probe.device) == (target.dtype, target.device):
        return target
    if isinstance(target, DTensor):
        return _elementwise(f, name, args, kwargs)
    return _gathered(f, name, args, kwargs)


def _empty(leaf: Any) -> Any:
    """A plain tensor with the type and the device of a sharded one."""
    return torch.empty(0, dtype=leaf.dtype, device=leaf.device) if is_sharded(leaf) else leaf


def _listed(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    return of_lists(f, name, args, kwargs, whole, _copies)


def _get_data(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    return alias(dtensor_of(args[0]))


def _set_data(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    target, value = args
    if not isinstance(target, ShardedParameter):
        plain = whole(value) if not isinstance(target, DTensor) else value
        if isinstance(target, DTensor):
            raise ScriptError(
                "`.data` of a gradient or of a copy of a sharded parameter is assigned, which the strategy mesh cannot "
                "do.",
                advice="Copy the values: x.data.copy_(…)",
            )
        with no_torch_function():
            f(target, plain)
        return
    if value.dtype != target.dtype or value.shape != target.shape or value.device != target.device:
        raise ScriptError(
            f"A parameter of {tuple(target.shape)}, {target.dtype}, gets `.data` of {tuple(value.shape)}, "
            f"{value.dtype} after the strategy mesh has split it over the workers.",
            advice="Convert the model before its first call.",
        )
    value = value.shard if isinstance(value, ShardedParameter) else value
    if isinstance(value, DTensor):
        target.shard = alias(relaid(value, target.shard.placements))
    else:
        target.shard = split_like(value, target.shard)


def _set_grad(f: Any, name: str, args: Any, kwargs: Any) -> Any:
    target, value = args
    if value is not None and is_sharded(target) and not is_sharded(value):
        value = split_like(value, dtensor_of(target))
    elif value is not None and not is_sharded(target) and is_sharded(value):
        value = whole(value)
    elif isinstance(value, ShardedParameter):
        value = alias(value.shard)
    with no_torch_function():
        f(target, value)


def assign_whole_data() -> None:
    """From now on a plain tensor whose `.data` is set to a sharded one gets the whole one, for the rest of the process:
    torch asks only the target, and a plain tensor must not get a sharded one's memory."""
    before = vars(torch.Tensor).get("data", plain_data)  # another part of the strategy may ask for the same

    def assign(target: Any, value: Any) -> None:
        if is_sharded(value) and not is_sharded(target):
            with torch.no_grad():
                value = whole(value)
        before.__set__(target, value)

    patch(torch.Tensor, "data", property(before.__get__, assign))


@torch.no_grad()
def _keep(target: Any, full: torch.Tensor) -> None:
    if not isinstance(target, ShardedParameter) and target.requires_grad:
        raise ScriptError(
            "The script changes a view of a tensor in place that has a graph and that the strategy mesh has split over "
            "the workers.",
            advice="Compute a new tensor instead (torch.where, torch.cat), or use --strategy mirrored.",
        )
    operand_check.note(full)
    part_of(target).copy_(part_like(full, target))


_copies = LentCopies((DTensor, ShardedParameter), whole, _keep, part_of)


def write_back_arrays() -> None:
    """What the script has written into views of copies, also through NumPy's arrays, is brought to the parts. Every
    worker calls it; nothing is sent."""
    _copies.write_back(arrays=True)


# Functions through which numbers of the script enter split tensors, and who is told their arguments.
ENTERING: dict[Any, Callable[[Any, Any], None]] = {
    **dict.fromkeys((_elementwise, _set_data, _set_grad), lambda args, kwargs: operand_check.note((args, kwargs))),
    **dict.fromkeys((_changed, _rewritten), operand_check.note_change),
    _listed: operand_check.note_lists,
    _gradients: lambda args, kwargs: operand_check.note(args[:1]),  # the outputs of torch.autograd.grad
}
ShardedParameter.answer = staticmethod(answer)
