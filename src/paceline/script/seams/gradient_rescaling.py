"""Gives a script that looks at gradients inside a sliced call's backward values of the true size.

Gradients of local tensors are kept N times too large (see `crossings`). That has no effect in autograd, which is linear
in gradients. Two things that a script may bring into a model are not linear:

    a hook on a tensor           gets the gradient of the whole batch, as in one process, if the tensor has one row per
                                 sample; the slice's gradient divided by N if the hook uses other tensors of its slice
                                 (an implicit layer), or, with a notice, if the tensor has no rows
    a Function with a backward   gets its slice's gradient divided by N; its result is multiplied by N

Every worker registers the same hooks and makes the same calls in the same order, because the rows of a hook's gradient
are gathered in backward.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import Function

from paceline.script import memory
from paceline.script.patches import all_of, patch
from paceline.script.proof.backward_hooks import is_the_scripts
from paceline.script.proof.recorder import mark
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split
from paceline.script.rows.gradients import hook_gathered, require_all, retain_gathered, retains_gathered
from paceline.script.rows.spread_tensor import SpreadTensor, make_plain
from paceline.script.rows.tensor import Rows
from paceline.torch_private import no_functions_or_modes

if TYPE_CHECKING:
    from paceline.script.seams.stage import Stage

SEES_SLICE = "A hook on a tensor inside a model sees the gradient of its worker's slice"
NOT_THE_SCRIPTS = ("torch.", "paceline.")


def find(stage: Stage) -> Callable[[], None]:
    """Installs the patches; returns a function that removes them. Only with several workers."""
    plain_register, retain, apply = torch.Tensor.register_hook, torch.Tensor.retain_grad, Function.__dict__["apply"]
    retains: Any = torch.Tensor.retains_grad
    changed: list[tuple[Any, dict[str, Any]]] = []
    sliced = set[Any]()  # hooks that failed on the whole batch

    def register(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        if isinstance(tensor, Rows):
            return plain_register(tensor, hook)
        with no_functions_or_modes():  # else a default device, which is a mode, has `register_hook` called again
            return plain_register(tensor, hook)

    @functools.wraps(plain_register)
    def register_hook(self: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        split = stage.views.split_of_call
        if is_the_scripts(hook):
            mark("a hook on a tensor")
            if split is None:
                require_all([self])
        if split is None and not isinstance(self, Rows):
            return hook_gathered(self, hook) or register(self, hook)
        if split is None or self.is_leaf or not is_the_scripts(hook):
            return register(self, hook)
        return register(self, _rescaled_hook(stage, self, hook, split, sliced))

    @functools.wraps(retain)
    def retain_grad(self: torch.Tensor) -> None:
        if stage.views.redo is not None:
            stage.views.redo.note_retained(self)
        if stage.views.split_of_call is None:
            require_all([self])
        if stage.views.split_of_call is not None or isinstance(self, Rows) or not retain_gathered(self):
            retain(self)

    def retains_grad(self: torch.Tensor) -> bool:
        if isinstance(self, Rows):
            return bool(retains.__get__(self))
        with no_functions_or_modes():  # a strategy's tensors answer for themselves
            return bool(retains.__get__(self)) or retains_gathered(self)

    def apply_with_mark(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, SpreadTensor) for value in args):
            make_plain(args)  # `apply` is C++, which does not ask
        if not cls.__module__.startswith(NOT_THE_SCRIPTS) and not torch.compiler.is_compiling():
            mark(cls.__qualname__)
        inside = stage.views.split_of_call is not None and not torch.compiler.is_compiling()
        if inside and not cls.__module__.startswith(NOT_THE_SCRIPTS) and all(cls is not known for known, _ in changed):
            changed.append((cls, _wrap_function(cls, stage)))
        gathers = stage.views.gathers
        stage.views.gathers = True  # a model that `forward` calls: its output leaves through C++
        try:
            return apply.__get__(None, cls)(*args, **kwargs)  # `apply` is Python in torch 2.13 and C in torch 2.15
        finally:
            stage.views.gathers = gathers

    def restore() -> None:
        for cls, methods in changed:
            for name, method in methods.items():
                setattr(cls, name, method)

    return all_of(
        [
            restore,
            patch(torch.Tensor, "register_hook", register_hook),
            patch(torch.Tensor, "retain_grad", retain_grad),
            patch(torch.Tensor, "retains_grad", property(retains_grad)),
            patch(Function, "apply", classmethod(apply_with_mark)),
        ]
    )


def _rescaled_hook(
    stage: Stage, tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any], split: Split, sliced: set[Any]
) -> Callable[[torch.Tensor], Any]:
    world, code = split.group.world, getattr(hook, "__code__", hook)

    def of_slice(grad: torch.Tensor) -> Any:
        with stage.inside():  # gradients that it computes are those of its slice
            found = hook(grad / world)
        return None if found is None else found * world

    def of_batch(grad: torch.Tensor) -> Any:
        whole, found, failed = crossings.gather(grad, 0, split) / world, None, False
        try:
            found = hook(whole)
        except RuntimeError as error:  # probably shapes: the hook may use tensors of its slice
            if memory.ran_out(error):
                raise
            failed = True
        if any(split.group.gather_objects(failed, "a hook on a tensor")):  # also where one row fits by chance
            stage.views.warn(f"{SEES_SLICE}: it failed on that of the whole batch, and was called twice, this once.")
            sliced.add(code)
            return of_slice(grad)
        if found is None:
            return None
        return crossings.cut(found, 0, split) * world if split.mine else torch.zeros_like(grad)

    if code in sliced or _holds_tensors(hook):
        return of_slice
    rows = tensor.dim() > 0 and tensor.shape[0] == max(split.mine, 1)
    if all(split.group.gather_objects(rows, "a hook on a tensor")):
        return of_batch
    stage.views.warn(f"{SEES_SLICE}: the tensor's first dimension does not count samples.")
    return of_slice


def _holds_tensors(hook: Any) -> bool:
    """Whether a function holds tensors that were computed in the call in which it was defined."""
    cells = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or () if cell != types.CellType()]
    held = [*cells, *(getattr(hook, "__defaults__", None) or ()), *getattr(hook, "args", ())]
    return any(isinstance(thing, torch.Tensor) and not isinstance(thing, nn.Parameter) for thing in held)


def _wrap_function(cls: Any, stage: Stage) -> dict[str, Any]:
    """Wraps a Function's methods; returns the plain ones."""
    name = "vjp" if cls.vjp is not Function.vjp else "backward"
    marking = "setup_context" if cls.setup_context is not Function.setup_context else "forward"
    plain, plain_marking = getattr(cls, name), getattr(cls, marking)

    def mark(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._paceline_factor = stage.rows.world if stage.views.split_of_call is not None else 1
        return plain_marking(ctx, *args, **kwargs)

    def backward(ctx: Any, *grads: Any) -> Any:
        factor = getattr(ctx, "_paceline_factor", 1)
        if factor == 1:
            return plain(ctx, *grads)
        with stage.inside():  # what it calls computes the rows of its slice
            found = plain(ctx, *(g / factor if isinstance(g, torch.Tensor) else g for g in grads))
        if isinstance(found, torch.Tensor):
            return found * factor
        return tuple(g * factor if isinstance(g, torch.Tensor) else g for g in found)

    kept = {key: cls.__dict__[key] for key in (name, marking) if key in cls.__dict__}
    setattr(cls, name, staticmethod(backward))
    setattr(cls, marking, staticmethod(mark))
    return kept
