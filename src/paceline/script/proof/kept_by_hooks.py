"""What hooks on the forward keep outside of modules: in variables of the function that defined them, and in attributes
of an object whose method they are. A script whose lines are in `main()` keeps activations there. And what any code
keeps in the variables of the context: a library's hooks collect outputs there (hidden states, a router's logits).

A namespace has a name, the same on every worker: the hook, and its variable that holds the object.
"""

from __future__ import annotations

import contextvars
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from paceline.script.proof.backward_hooks import OF_FORWARD, is_the_scripts

MARK = "hook:"  # no module's path begins with it
CONTEXT = f"{MARK}context"
CLOSED = (torch.Tensor, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class _Variables(dict[str, Any]):
    """The variables that a hook shares with the function around it."""

    def __init__(self, cells: dict[str, Any]) -> None:
        super().__init__((name, cell.cell_contents) for name, cell in cells.items() if cell != types.CellType())
        self.cells = cells

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name in self.cells:
            self.cells[name].cell_contents = value


class _Context(dict[str, Any]):
    """The variables of the running context that hold tensors or containers."""

    def __init__(self) -> None:
        found = sorted(contextvars.copy_context().items(), key=lambda item: item[0].name)
        self._variables = {v.name: v for v, value in found if isinstance(value, (list, dict, tuple, torch.Tensor))}
        super().__init__((name, variable.get()) for name, variable in self._variables.items())

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._variables[name].set(value)


def namespaces(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """All of them, with each of their variables once."""
    known = {id(vars(m)) for m in module.modules()}  # their attributes are looked at anyhow
    for path, m in module.named_modules():
        for number, hook in enumerate(_hooks(m)):
            for name, space in _spaces(hook).items():
                if isinstance(space, _Variables):
                    new = {key: value for key, value in space.items() if id(space.cells.get(key)) not in known}
                    known.update(map(id, space.cells.values()))
                else:
                    new = {} if id(space) in known else space
                    known.add(id(space))
                yield f"{MARK}{number}:{name}:{path}", new
    if context := _Context():
        yield CONTEXT, context


def find(module: nn.Module, mark: str) -> dict[str, Any]:
    """The namespace of this name; an empty one if the hook is gone."""
    if mark == CONTEXT:
        return _Context()
    _, number, name, path = mark.split(":", 3)
    hooks = _hooks(module.get_submodule(path))
    return _spaces(hooks[int(number)]).get(name, {}) if int(number) < len(hooks) else {}


def _hooks(module: nn.Module) -> list[Any]:
    return [hook for kind in OF_FORWARD for hook in getattr(module, kind).values() if is_the_scripts(hook)]


def _spaces(hook: Any) -> dict[str, dict[str, Any]]:
    given: dict[str, Any] = {}
    while isinstance(hook, functools.partial):
        given |= {f"given {i}": value for i, value in enumerate((*hook.args, *hook.keywords.values()))}
        hook = hook.func
    function = getattr(hook, "__func__", hook)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    variables = _Variables(dict(zip(names, getattr(function, "__closure__", None) or (), strict=True)))
    held = variables | given | {"self": getattr(hook, "__self__", hook)}
    variables.update((name, value) for name, value in held.items() if isinstance(value, (list, dict)))
    objects = {
        name: value for name, value in held.items() if not isinstance(value, CLOSED) and hasattr(value, "__dict__")
    }
    return {"": variables} | {name: vars(value) for name, value in objects.items()}
