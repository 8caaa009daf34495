"""An optimizer, sent to servers as the name of its class and its options: no code and no pickle travels.

Only classes that both sides have are sent: those of torch.optim and Paceline's own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from paceline.errors import ScriptError

OURS = "paceline.converge.optimizers."
# Each element's update depends on this element's gradients only, so that a tensor may be cut.
ELEMENTWISE = frozenset(
    f"torch.optim.{name}"
    for name in (
        *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    )
)
# Options that say how a step is computed, not what: the server chooses them for its own processor.
OF_KERNELS = ("foreach", "fused", "capturable", "differentiable")
REFUSED = {
    "torch.optim.LBFGS": "LBFGS evaluates the loss several times per step",
    "torch.optim.SparseAdam": "SparseAdam needs sparse gradients",
}
ADVICE = "Use an optimizer of torch.optim or of Paceline, or another strategy: --strategy mirrored"


class OptimizerSpec(msgspec.Struct, frozen=True):
    """The class's name, and each parameter group's tensors (their numbers) and options."""

    path: str
    groups: tuple[tuple[int, ...], ...]
    options: tuple[dict[str, Any], ...]

    @property
    def whole(self) -> bool:
        """Whether the optimizer needs whole tensors."""
        return self.path not in ELEMENTWISE


def spec_of(optimizer: torch.optim.Optimizer) -> tuple[OptimizerSpec, list[torch.Tensor]]:
    """The optimizer as it is sent, and its tensors by number. Raises ScriptError if a server cannot have it."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is kind:
        path = f"torch.optim.{kind.__name__}"
    elif kind.__module__.startswith(OURS):
        path = f"{kind.__module__}.{kind.__qualname__}"
    else:
        raise ScriptError(
            f"The optimizer {kind.__module__}.{kind.__qualname__} cannot run on a parameter server: servers know the "
            "optimizers of torch.optim and of Paceline only, because no code is sent to them.",
            advice=ADVICE,
        )
    if path in REFUSED:
        raise ScriptError(f"A parameter server cannot run {kind.__name__}: {REFUSED[path]}.", advice=ADVICE)
    tensors: list[torch.Tensor] = []
    groups: list[tuple[int, ...]] = []
    for group in optimizer.param_groups:
        groups.append(tuple(range(len(tensors), len(tensors) + len(group["params"]))))
        tensors.extend(group["params"])
    return OptimizerSpec(path, tuple(groups), tuple(options_of(optimizer))), tensors


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The present options of each group, such as the learning rate that a scheduler has set."""
    return [
        {
            name: _sendable(type(optimizer).__name__, name, value)
            for name, value in group.items()
            if name not in ("params", "param_names", *OF_KERNELS)
        }
        for group in optimizer.param_groups
    ]


def build(spec: OptimizerSpec, parameters: Sequence[tuple[int, torch.nn.Parameter]]) -> torch.optim.Optimizer | None:
    """The optimizer over a server's pieces, each given with its tensor's number. Raises ValueError for a class that is
    not of torch.optim or Paceline. None if the server holds no piece."""
    module, _, name = spec.path.rpartition(".")
    if module != "torch.optim" and not module.startswith(OURS):
        raise ValueError(f"{spec.path} is not an optimizer of torch.optim or of Paceline")
    kind: Any = getattr(importlib.import_module(module), name, None)
    if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"{spec.path} is not an optimizer")
    group_of = {tensor: number for number, tensors in enumerate(spec.groups) for tensor in tensors}
    members: list[list[torch.nn.Parameter]] = [[] for _ in spec.groups]
    for tensor, parameter in parameters:
        members[group_of[tensor]].append(parameter)
    if not any(members):
        return None
    groups = [{"params": held, **_tuples(options)} for held, options in zip(members, spec.options, strict=True) if held]
    floats = all(parameter.is_floating_point() for held in members for parameter in held)
    fused = floats and name in ("SGD", "Adam", "AdamW", "Adagrad") and module == "torch.optim"
    make: Any = kind  # a subclass takes other arguments than Optimizer
    optimizer: torch.optim.Optimizer = make(groups, fused=True) if fused else make(groups)
    # A foreach step may write into gradients, which are the worker's and may be pushed again.
    for group in optimizer.param_groups:
        if not fused and "foreach" in group:
            group["foreach"] = False
    return optimizer


def held_groups(spec: OptimizerSpec, tensors: Sequence[int]) -> list[int]:
    """The groups that have a piece on a server which holds pieces of these tensors: those that `build` makes."""
    held = set(tensors)
    return [number for number, members in enumerate(spec.groups) if held & set(members)]


def set_options(optimizer: torch.optim.Optimizer, options: Sequence[dict[str, Any]], rate: float) -> None:
    """Puts a worker's present options on, with the learning rate multiplied by `rate`."""
    for group, given in zip(optimizer.param_groups, options, strict=True):
        group.update(_tuples(given))
        if rate != 1.0:
            group["lr"] = group["lr"] * rate


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _sendable(optimizer: str, name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, (tuple, list)):
        return [_sendable(optimizer, name, each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ScriptError(
        f"The option {name} of {optimizer} is a {type(value).__name__}, which cannot be sent to a parameter server.",
        advice=ADVICE,
    )
