"""Gives all ranks the parameters, the optimizer state or an object of one rank.

`broadcast_object` and `allgather_object` pickle objects of the script, and unpickle what other ranks of the same run
have pickled: that is what they are for.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.process_sets import ProcessSet, global_process_set
from paceline.horovod.torch.mpi_ops import allgather, broadcast_, broadcast_async_, synchronize


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites parameters with those of the root. `params`: a state_dict, named_parameters() or parameters()."""
    if isinstance(params, Mapping):
        named: list[tuple[str | None, Any]] = sorted(params.items())
    elif isinstance(params, (str, bytes)) or not isinstance(params, Iterable):
        raise ValueError(f"invalid params of type: {type(params)}")
    else:
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    handles, copies = [], []
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            continue  # a state_dict may hold other things (get_extra_state)
        target = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
        if target is not tensor:
            copies.append((tensor, target))
        handles.append(broadcast_async_(target, root_rank, name))
    for handle in handles:
        synchronize(handle)
    with torch.no_grad():
        for tensor, copy in copies:
            tensor.copy_(copy)


class _Place:
    """Stands for a tensor of the root's state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.on_host = tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu"


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Gives every rank the optimizer state and the options (learning rate, …) of the root. As Horovod does, gives zero
    gradients to the parameters of an optimizer without a state; `model` tells which ones have sparse gradients."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not optimizer.state:
        _zero_gradients(parameters, model)
    is_root = basics.rank() == root_rank
    plan: Any = None
    if is_root:
        state = [optimizer.state.get(p, {}) for p in parameters]
        options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        plan = [{k: _Place(v) if torch.is_tensor(v) else v for k, v in each.items()} for each in state], options
    state_plan, options = broadcast_object(plan, root_rank, name="optimizer_state")
    tensors = []
    for number, (parameter, entries) in enumerate(zip(parameters, state_plan, strict=True)):
        own = optimizer.state[parameter] if entries else {}
        for key in [key for key in own if key not in entries]:
            del own[key]
        for key, value in entries.items():
            if isinstance(value, _Place):
                own[key] = _tensor_for(value, own.get(key), parameter)
                tensors.append((f"optimizer_state.{number}.{key}", own[key]))
            else:
                own[key] = value
    for group, values in zip(optimizer.param_groups, options, strict=True):
        group.update(values)
    broadcast_parameters(tensors, root_rank)


def _zero_gradients(parameters: list[torch.Tensor], model: Any) -> None:
    modules = model.modules() if model is not None else ()
    embeddings = [m for m in modules if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse]
    sparse = {parameter for module in embeddings for parameter in module.parameters()}
    for parameter in parameters:
        if parameter.requires_grad and parameter.grad is None and parameter not in sparse:
            parameter.grad = torch.zeros_like(parameter)


def _tensor_for(place: _Place, found: Any, parameter: torch.Tensor) -> torch.Tensor:
    """The tensor that receives the root's: the one that is there, if it fits."""
    if torch.is_tensor(found) and tuple(found.shape) == place.shape and found.dtype == place.dtype:
        return found
    return torch.zeros(place.shape, dtype=place.dtype, device="cpu" if place.on_host else parameter.device)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on every rank: pickled there and unpickled here. Without a `name`, ranks must give objects of
    the same type."""
    name = name or type(obj).__name__
    is_root = basics.rank() == root_rank
    data = _pickle(obj) if is_root else torch.empty(0, dtype=torch.uint8, device="cpu")
    size = torch.tensor([data.numel()], device="cpu")
    broadcast_(size, root_rank, f"{name}.sz", process_set)
    if not is_root:
        data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    broadcast_(data, root_rank, f"{name}.t", process_set)
    return obj if is_root else _unpickle(data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in rank order. Without a `name`, ranks must give objects of the same type."""
    name = name or type(obj).__name__
    data = _pickle(obj)
    sizes = allgather(torch.tensor([data.numel()], device="cpu"), f"{name}.sz", process_set)
    whole = allgather(data, f"{name}.t", process_set)
    return [_unpickle(part) for part in whole.split(sizes.tolist())]


def _pickle(obj: Any) -> torch.Tensor:
    try:
        raw = pickle.dumps(obj)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A function within a function, a lambda: Horovod takes them, too, with the help of cloudpickle.
        if importlib.util.find_spec("cloudpickle") is None:
            raise
        raw = importlib.import_module("cloudpickle").dumps(obj)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _unpickle(data: torch.Tensor) -> Any:
    return pickle.load(io.BytesIO(data.numpy().tobytes()))
