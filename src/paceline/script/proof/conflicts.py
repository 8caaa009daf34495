"""Ways to cut a call's arguments that cannot work, known from those that did not.

Where a module raises on some rows, only the arguments that it had looked at until then can be the cause. Any other way
that cuts these alike raises at the same place, and need not be tried: of seven arguments as long in time as the batch,
hundreds of ways are left, and a few are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from paceline.script import tree
from paceline.script.draws.rows import Draws
from paceline.script.proof import trial


class Conflicts:
    """The ways that were tried in one proof, and raised."""

    def __init__(self) -> None:
        self._found: list[dict[int, int | None]] = []  # the cuts of the arguments that a call looked at

    def rule_out(self, cuts: dict[int, int]) -> bool:
        return any(all(cuts.get(leaf) == dim for leaf, dim in one.items()) for one in self._found)

    def learn(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, cuts: dict[int, int], draws: Draws
    ) -> None:
        """Tries once more what has raised: the module on these arguments, which were cut in this way."""
        looked_at = _looked_at(plain, module, given, draws)
        if looked_at is not None:
            self._found.append({leaf: cuts.get(leaf) for leaf in looked_at})


@trial.in_own_context
def _looked_at(plain: Callable[..., Any], module: nn.Module, given: Any, draws: Draws) -> set[int] | None:
    """The arguments that the module looked at until it raised; None if it does not raise, or cannot be watched."""
    if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
        return None
    leaves = tree.leaves(given)
    try:
        with trial.alone(module) as (copied, *_), draws.rehearsal(), _Looks(leaves) as looks:
            plain(copied, *given[0], **given[1])
    except Exception:  # as it did before
        return looks.found
    return None


class _Looks(TorchFunctionMode):
    """Arguments that Python code hands to torch, or asks for their shapes."""

    def __init__(self, leaves: list[Any]) -> None:
        super().__init__()
        self.found: set[int] = set()
        self._leaves = leaves

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {id(leaf) for leaf in tree.leaves((args, kwargs))}
        self.found.update(i for i, leaf in enumerate(self._leaves) if id(leaf) in given)
        return func(*args, **kwargs)
