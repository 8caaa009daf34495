"""torch.func and the script's own autograd.Functions get whole tensors, gathered before they begin.

A transform (`vmap`, `grad`) wraps the tensors that it is given, and torch then calls DTensors from C++, where a DTensor
does not behave as a whole tensor. Parameters that a transformed function uses without being given them (`vmap(model)`)
are gathered where they are used, outside of all transforms, so that a later backward reaches them. A Function's `apply`
is C++, too, and its backward may be any code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

from paceline.script import tree
from paceline.script.patches import patch
from paceline.script.seams.gradient_rescaling import NOT_THE_SCRIPTS
from paceline.spread.dtensors import is_sharded
from paceline.strategies.mesh.sharded_parameter import whole
from paceline.torch_private import outside_transforms

MAKERS = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian")  # f → a function of the same arguments
CALLERS = ("vjp", "jvp", "linearize")  # f, arguments → results


def find() -> None:
    """Patches torch.func and Function.apply, for the rest of the process."""
    for name in MAKERS:
        patch(torch.func, name, _making(getattr(torch.func, name)))
    for name in CALLERS:
        patch(torch.func, name, _given_wholes(getattr(torch.func, name)))
    patch(torch, "vmap", torch.func.vmap)
    apply = Function.__dict__["apply"]

    def apply_to_wholes(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith(NOT_THE_SCRIPTS):
            args, kwargs = with_wholes((args, kwargs))
        return apply.__get__(None, cls)(*args, **kwargs)

    patch(Function, "apply", classmethod(apply_to_wholes))


def with_wholes(value: Any) -> Any:
    """The value with whole tensors. Every worker of the axis calls it; waits for all of them."""
    if not any(is_sharded(leaf) for leaf in tree.leaves(value)):
        return value
    with outside_transforms():
        return tree.replace(value, lambda leaf: whole(leaf) if is_sharded(leaf) else leaf)


def _making(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def transform(*args: Any, **kwargs: Any) -> Any:
        return _given_wholes(plain(*args, **kwargs))

    return transform


def _given_wholes(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_wholes((args, kwargs))
        return plain(*args, **kwargs)

    return call
