"""ZeRO-1: each worker keeps the optimizer state of a part of the parameters, updates that part and sends it round.

Gradients are averaged as in `Mirrored`, so clipping, penalties and printing see the same numbers. Parameters are whole
on every worker. The update of a parameter is the same arithmetic on one worker instead of all: the same numbers, bit
for bit. An optimizer that is not known to treat each parameter by itself (L-BFGS, a class of the script) updates
everything on every worker, with a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.agreement.updates import compare
from paceline.comm.coalesced import from_owners
from paceline.comm.group import Group
from paceline.script.seams.stage import Stage
from paceline.script.together import Together
from paceline.strategies.mirrored import Mirrored
from paceline.strategies.owned_state import Owners, divide, size_of, whole_parameters_of
from paceline.units import size

ONE_BY_ONE = ("torch.optim.", "paceline.converge.optimizers.")  # modules whose optimizers treat parameters one by one
WHAT = "the updated parameters"


class Zero1(Mirrored):
    """Mirrored, with the optimizer's state and updates divided among the workers.

    Take it if the optimizer's state (Adam: twice the weights) does not fit. Costs as many bytes per step as Mirrored;
    the weights are gathered after the update, which nothing hides. When a peer dies, the collective that misses it
    raises.
    """

    name = "zero1"

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        self._owners = Owners(self.group.world)
        self._told: set[str] = set()
        self._together = stage.together

    @classmethod
    def over(cls, stage: Stage, group: Group) -> Zero1:
        """Only its updates, for a strategy that leaves whole gradients on every worker of the group."""
        made = cls()
        made.stage, made.group, made._owners, made._told = stage, group, Owners(group.world), set()
        made._together = Together(group)
        return made

    def step(self, plain: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self._divides(optimizer):
            return plain(optimizer, *args, **kwargs)
        closure = next((value for value in (*args, *kwargs.values()) if callable(value)), None)
        if closure is None:
            return self._take(plain, optimizer, args, kwargs)
        with torch.enable_grad():  # it calls the model, and makes the gradients of this step
            loss = closure()
        without = [None if value is closure else value for value in args]
        self._take(plain, optimizer, without, {name: None if v is closure else v for name, v in kwargs.items()})
        return loss

    def _take(self, plain: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        state = divide(optimizer, self._owners, self.group)
        updated = [parameter for parameter in whole_parameters_of(optimizer) if parameter.grad is not None]
        own = [parameter for parameter in updated if self._owners[parameter] == self.group.rank]
        if self.group.world > 1:
            compare(optimizer, updated, self.group, self.stage.views.warn)
        with state.updating():
            result = self._update(plain, optimizer, updated, own, args, kwargs)
        self._tell(optimizer)
        return result

    def _update(
        self,
        plain: Callable[..., Any],
        optimizer: Any,
        updated: Sequence[torch.Tensor],
        own: Sequence[torch.Tensor],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Updates own parameters, and gets the others' new values from their owners."""
        mine = set(map(id, own))
        others = [(parameter, parameter.grad) for parameter in updated if id(parameter) not in mine]
        for parameter, _ in others:
            parameter.grad = None  # an optimizer passes over a parameter without a gradient
        try:
            result = self._together.do(self._plainly, plain, optimizer, args, kwargs)
        finally:
            for parameter, grad in others:
                parameter.grad = grad
        self._send_round(updated)
        return result

    def _plainly(self, plain: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        result = plain(optimizer, *args, **kwargs)
        self.group.agree()
        return result

    @torch.no_grad()
    def _send_round(self, updated: Sequence[torch.Tensor]) -> None:
        """Every worker gets the owners' values, in a few messages."""
        owned = [(parameter, self._owners[parameter], parameter) for parameter in updated]
        for number, owner, value in from_owners(self.group, owned, WHAT):
            if owner != self.group.rank:
                updated[number].copy_(value)

    def _divides(self, optimizer: Any) -> bool:
        """Whether the optimizer's parameters are updated by their owners."""
        kind = type(optimizer)
        if self.stage.aside or not self._is_worthwhile():
            return False
        one_by_one = f"{kind.__module__}.".startswith(ONE_BY_ONE) and kind is not torch.optim.LBFGS
        if not one_by_one:
            self.stage.views.warn(
                f"The optimizer {kind.__name__} is not known to update each parameter by itself: every worker keeps "
                "all of its state."
            )
        return one_by_one

    def _is_worthwhile(self) -> bool:
        return self.group.world > 1

    def _tell(self, optimizer: Any) -> None:
        """Once for each kind of optimizer, after its first step: how much is saved."""
        kind = type(optimizer).__name__
        if kind in self._told:
            return
        self._told.add(kind)
        mine = torch.tensor([size_of(optimizer)], device="cpu")
        kept = self.group.gather_vectors(mine, "the sizes of the optimizer's state").flatten().tolist()
        if sum(kept):
            self.stage.pulse.notice(self._saved(kind, kept, optimizer))

    def _saved(self, kind: str, kept: list[int], optimizer: Any) -> str:
        """What is saved, given the bytes of state that each worker keeps."""
        return (
            f"ZeRO-1: the state of {kind}, {size(sum(kept))}, is divided among {self.group.world} workers; a worker "
            f"keeps at most {size(max(kept))}."
        )
