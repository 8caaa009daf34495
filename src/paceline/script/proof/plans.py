"""Plans of calls that are computed in micro-batches, by model and kind of call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from torch import nn

from paceline.script.proof.guards import Guards
from paceline.script.proof.plan import SlicePlan

MANY = 16  # plans per model: with more, calls that differ only in an argument's value share a plan


class Plans:
    """A plan is proven at the first call of its kind, at the 2nd, 4th, 8th …, and for each number of rows; and at each
    call of a model that has a value which changes from call to call."""

    def __init__(self, prove: Callable[[nn.Module, Any, list[Any]], SlicePlan | None]) -> None:
        """`prove(module, given, leaves)`: None if calls of this kind are computed whole."""
        self._prove, self._guards = prove, Guards()
        self._known: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, SlicePlan | None]] = (
            weakref.WeakKeyDictionary()
        )

    def forget(self, module: nn.Module) -> None:
        self._known.pop(module, None)

    def of(self, module: nn.Module, given: Any, leaves: list[Any]) -> SlicePlan | None:
        plans = self._known.setdefault(module, {})
        few = len(plans) < MANY
        key = self._guards.key(module, given, leaves, values=few)
        before = plans.get(key)
        if key in plans and before is None:
            return None
        if before is not None:
            before.calls += 1
            again = not few or self._guards.is_restless(module)
            if not (again or _is_due(before.calls) or _is_new(before, leaves)):
                return before
        plan = plans[key] = self._prove(module, given, leaves)
        if plan is not None:
            plan.calls = 1 if before is None else before.calls
            plan.batches |= set() if before is None else before.batches
        return plan


def _is_due(calls: int) -> bool:
    return calls & (calls - 1) == 0


def _is_new(plan: SlicePlan, leaves: list[Any]) -> bool:
    """Whether a call has another number of rows than those for which the plan was proven."""
    return not plan.fits(leaves) or plan.batch(leaves) not in plan.batches
