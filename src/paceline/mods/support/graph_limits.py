"""Uses of torch by the script that graphs must know of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.mods.support.kept_gradients import WITHOUT
from paceline.mods.support.promise import Promise, real


class GraphLimits:
    """`by_name`: the script uses torch.autograd.grad, or backward(inputs=…), so autograd must see the parameters."""

    def __init__(self, in_flight: Callable[[], bool]) -> None:
        """`in_flight`: whether a call is between its forward and its backward."""
        self.by_name = False
        self._in_flight = in_flight

    def watch(self) -> None:
        for name in ("grad", "backward"):
            setattr(torch.autograd, name, self._noticing_names(getattr(torch.autograd, name)))
        torch.compile = _compiling_for_values(torch.compile)
        # A Function takes a promise for a leaf of autograd's graph: its gradient would go nowhere.
        torch.autograd.Function.apply = classmethod(_with_values(torch.autograd.Function.apply.__func__))  # type: ignore[attr-defined, method-assign, assignment]

    def _noticing_names(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def differentiate(*args: Any, **kwargs: Any) -> Any:
            named = plain.__name__ == "grad" or kwargs.get("inputs") is not None
            if named and not self.by_name and _by_script():
                self.by_name = True
                if self._in_flight():
                    said = "--mod cuda_graphs: torch.autograd.grad or backward(inputs=…) is first used inside a step."
                    raise ScriptError(said, advice=WITHOUT)
            return plain(*args, **kwargs)

        return differentiate


def _compiling_for_values(plain: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, whose functions are given values in place of promises. Models are given none anyway."""

    @wraps(plain)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        made = plain(model, **kwargs)
        if model is None:
            return lambda function: compile(function, **kwargs)
        return made if isinstance(model, nn.Module) or torch.compiler.is_dynamo_compiling() else _with_values(made)

    return compile


def _by_script() -> bool:
    """Whether the caller's caller is neither torch nor paceline."""
    return not str(sys._getframe(2).f_globals.get("__name__")).startswith(("torch.", "paceline."))


def _with_values(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling() and any(type(arg) is Promise for arg in (*args, *kwargs.values())):
            args, kwargs = real((args, kwargs))
        return plain(*args, **kwargs)

    return call
