"""Hooks on the backward of modules: they must see the gradients of the whole batch (differential privacy, K-FAC, a log
of gradients). Inside a sliced call they would see those of own rows, times the number of workers, so a module that has
one runs whole, and the modules in it are sliced."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from torch import nn

from paceline.errors import NotSplitError
from paceline.torch_private import uncompiled

KINDS = ("_backward_pre_hooks", "_backward_hooks")
OF_FORWARD = ("_forward_pre_hooks", "_forward_hooks")


class Hooks:
    """The hooks that a module has now, looked up fast: every call asks."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[nn.Module, list[list[dict[int, Any]]]] = weakref.WeakKeyDictionary()

    def forget(self, module: nn.Module) -> None:
        self._known.pop(module, None)

    def on(self, module: nn.Module) -> Hashable:
        """What a plan depends on: whether there are hooks on the backward; and where there are hooks on the forward,
        which may leave values in the script: a hook that was set since needs another proof."""
        if module not in self._known:
            modules = list(module.modules())
            self._known[module] = [[getattr(m, kind) for m in modules for kind in some] for some in (KINDS, OF_FORWARD)]
        backward, forward = self._known[module]
        return any(backward), tuple(map(len, forward)) if any(forward) else ()


def hooked(module: nn.Module) -> NotSplitError | None:
    """Why the module is not sliced, if it or a module in it has a hook of the script on its backward."""
    subject = uncompiled(module)
    for name, m in subject.named_modules():
        if any(is_the_scripts(hook) for kind in KINDS for hook in getattr(m, kind).values()):
            told = type(subject).__name__
            return NotSplitError(
                f"The module {told} has a hook on the backward of {name or told}, which needs the gradients of the "
                "whole batch.",
                advice="Remove the hook, or set it on fewer modules.",
            )
    return None


def is_the_scripts(hook: Any) -> bool:
    """Whether a script or a library has set the hook, and neither torch nor we. Under a torch function mode (a default
    device) torch calls `register_hook` a second time, with the hook that we made of the script's."""
    return not str(getattr(hook, "__module__", None) or type(hook).__module__).startswith(("torch.", "paceline."))
