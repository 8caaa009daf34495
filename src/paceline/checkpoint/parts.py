"""What a checkpoint is made of: how the state of each kind of object is taken, compared and put back.

module      a torch.nn.Module
optimizer   a torch.optim.Optimizer, whose state is keyed by parameter index, as in its own state_dict
loader      a torch DataLoader, or `data.drop_in` of one
pipeline    an input pipeline of paceline.data
object      anything else with state_dict and load_state_dict: a scheduler, a GradScaler, an average of weights
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader

from paceline.checkpoint.crew import Crew
from paceline.checkpoint.safetensors_file import Reader
from paceline.checkpoint.tree import decode
from paceline.data.pipeline import Pipeline
from paceline.data.torch_loader import DropIn
from paceline.errors import CheckpointError, UsageError
from paceline.script import loader_position
from paceline.strategies.whole import part
from paceline.torch_private import uncompiled


def named_parts(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects with a state by name, and the other values. Several objects in a dict or list under one name are
    named `model.generator`, `optimizer.0`."""
    parts: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, value in given.items():
        found = list(_things(name, value))
        if found:
            parts |= found
        elif name in ("model", "optimizer", "loader"):
            raise UsageError(
                f"{name} is a {type(value).__name__}, which has no state_dict and no position.",
                advice=f"Pass the object itself: {name}={name}, or {name}={{'a': …, 'b': …}} for several.",
            )
        else:
            values[name] = value
    return parts, values


def _things(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if kind_of(value):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        entries = list(value.items() if isinstance(value, dict) else enumerate(value))
        if entries and all(kind_of(thing) for _, thing in entries):
            yield from ((f"{name}.{key}", thing) for key, thing in entries)


def kind_of(thing: Any) -> str:
    """The kind of an object; empty for a value without a state of its own."""
    if isinstance(thing, type):
        return ""
    if isinstance(thing, nn.Module):
        return "module"
    if isinstance(thing, torch.optim.Optimizer):
        return "optimizer"
    if isinstance(thing, Pipeline):
        return "pipeline"
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict") and not isinstance(thing, DropIn):
        return "object"  # also a loader that keeps its position itself
    return "loader" if isinstance(thing, (DataLoader, DropIn)) else ""


def state_of(thing: Any, crew: Crew) -> Any:
    """The object's state. Every worker calls it, for the same objects in the same order."""
    kind = kind_of(thing)
    if kind == "module":
        return dict(_bare(thing).state_dict(keep_vars=True))  # tied weights are the same object
    if kind == "loader":
        return loader_position.state_of(_loader(thing))
    if kind == "pipeline":
        states = crew.gather(thing.state(), "the positions of a pipeline")
        return [state for number, state in enumerate(states) if state not in states[:number]]
    return thing.state_dict()


def _bare(module: nn.Module) -> nn.Module:
    """The module behind torch.compile and DistributedDataParallel: neither may show in the names of tensors."""
    module = uncompiled(module)
    if isinstance(module, nn.parallel.DistributedDataParallel):
        inner: Any = module.module
        return _bare(inner)
    return module


def _loader(thing: Any) -> Any:
    return thing.loader if isinstance(thing, DropIn) else thing


def faults_of(name: str, thing: Any, saved: dict[str, Any], reader: Reader) -> list[str]:
    """Why a saved state does not fit the object, a line each."""
    kind = kind_of(thing)
    if saved["kind"] != kind:
        return [f"{name}: saved from a {saved['class']} ({saved['kind']}), now a {type(thing).__name__} ({kind})"]
    if kind == "module":
        return _module_faults(name, _bare(thing), saved["state"], reader)
    if kind == "optimizer":
        return _optimizer_faults(name, thing, saved, reader)
    if kind == "loader":
        return [f"{name}: {fault}" for fault in loader_position.faults_of(_loader(thing), saved["state"])]
    return []


def _module_faults(name: str, module: nn.Module, code: dict[str, Any], reader: Reader) -> list[str]:
    own = module.state_dict(keep_vars=True)
    faults = [f"missing in the checkpoint: {name}/{key}" for key in own if key not in code]
    faults += [f"unexpected in the checkpoint: {name}/{key}" for key in code if key not in own]
    for key, value in own.items():
        if key not in code or not isinstance(value, torch.Tensor) or is_lazy(value):
            continue
        shape = reader.shape(code[key])
        if shape is not None and shape != list(value.shape):
            faults.append(f"other shape: {name}/{key} is {shape} in the checkpoint, {list(value.shape)} in the model")
    return faults


def _optimizer_faults(name: str, optimizer: Any, saved: dict[str, Any], reader: Reader) -> list[str]:
    if saved["class"] not in ("", type(optimizer).__name__):  # a converted file does not say it
        return [f"{name}: saved from {saved['class']}, now {type(optimizer).__name__}"]
    groups = decode(saved["state"], lambda name: None)["param_groups"]
    counts = [len(group["params"]) for group in groups]
    own = [len(group["params"]) for group in optimizer.param_groups]
    return [f"{name}: parameters in each group: saved {counts}, now {own}"] if counts != own else []


def restore(thing: Any, saved: dict[str, Any], reader: Reader) -> None:
    """Puts a saved state into the object. Every worker calls it, for the same objects in the same order."""
    kind, code = kind_of(thing), saved["state"]
    if kind == "module":
        _restore_module(_bare(thing), code, reader)
    elif kind == "optimizer":
        _restore_optimizer(thing, decode(code, reader.read))
    elif kind == "loader":
        loader_position.restore(_loader(thing), code)
    elif kind == "pipeline":
        thing.restore(decode(code, reader.read))
    else:
        thing.load_state_dict(decode(code, reader.read))


def _restore_module(module: nn.Module, code: dict[str, Any], reader: Reader) -> None:
    own = module.state_dict(keep_vars=True)
    state = {}
    for key, entry in code.items():
        value = decode(entry, reader.mapped)
        like = own[key]
        is_part = isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor)
        state[key] = part(value, like) if is_part and not is_lazy(like) else value
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"{type(module).__name__}.load_state_dict refused the state: {error}") from None


def _restore_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in state["param_groups"] for index in group["params"]]
    by_index = dict(zip(indices, parameters, strict=True))
    for index, entries in state["state"].items():
        like = by_index.get(index)
        if like is None or not isinstance(entries, dict):
            continue
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.shape == like.shape:
                entries[key] = part(value, like)
    optimizer.load_state_dict(state)
    # torch casts floating-point state to the parameter's dtype; an optimizer may keep float32 for a bfloat16 parameter.
    for index, entries in state["state"].items():
        for key, value in entries.items() if index in by_index and isinstance(entries, dict) else ():
            now = optimizer.state[by_index[index]].get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                optimizer.state[by_index[index]][key] = value.to(now.device)
