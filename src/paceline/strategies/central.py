"""CentralStorage: the update is made once, in the host's memory, and the optimizer's state lives only there.

Every worker computes on its device, and gradients are averaged as in `Mirrored`. At a step, the owner of a parameter
copies it and its gradient to the host, updates it there, and every worker copies the new value back to its device. The
copies of the parameters lie in memory that all workers of the host share. The same arithmetic on the host's processor:
the same numbers as `Mirrored` where that computes on the host, and equal to rounding where it computes on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from paceline.comm.buckets import laid_like
from paceline.errors import UsageError
from paceline.script.seams.stage import Stage
from paceline.strategies.zero1 import Zero1
from paceline.units import size

ALIGNED = 64  # bytes: each tensor begins at a cache line


class CentralStorage(Zero1):
    """The optimizer's state and the update live once, in the host's memory; compute is mirrored.

    Take it if the GPUs' memory is too small for the optimizer's state, and the host's is not. Costs copies of gradients
    and weights between device and host in each step. When a peer dies, the collective that misses it raises. All
    workers must be on one host.
    """

    name = "central"

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if not stage.group.is_one_host:
            raise UsageError(
                "--strategy central keeps the parameters in the memory of one host, and the workers are on several.",
                advice="Type: --strategy zero1",
            )
        self._copies: WeakIdKeyDictionary = WeakIdKeyDictionary()  # parameter → its copy in the host's memory
        self._bytes = 0  # of all copies
        self._meetings: list[Any] = []  # keep the shared memory

    def _is_worthwhile(self) -> bool:
        return True  # also with one worker: its GPU keeps no optimizer state

    def _update(
        self,
        plain: Callable[..., Any],
        optimizer: Any,
        updated: Sequence[torch.Tensor],
        own: Sequence[torch.Tensor],
        args: Any,
        kwargs: Any,
    ) -> Any:
        self._learn(updated)
        result = self.stage.together.do(self._update_own, plain, optimizer, own, args, kwargs)
        with torch.no_grad():
            for parameter in updated:
                parameter.copy_(self._copies[parameter])
        return result

    def _update_own(
        self, plain: Callable[..., Any], optimizer: Any, own: Sequence[torch.Tensor], args: Any, kwargs: Any
    ) -> Any:
        if self.group.world > 1:
            self.group.agree()  # all workers have copied the results of the step before
        with torch.no_grad():
            for parameter in own:
                copy, grad = self._copies[parameter], parameter.grad
                assert grad is not None
                copy.copy_(parameter)  # the script may have changed it
                copy.grad = torch.empty_like(copy).copy_(grad) if grad.layout is torch.strided else grad.to(copy.device)
        mine = {id(parameter) for parameter in own}
        lists = [group["params"] for group in optimizer.param_groups]
        self._rename_state(optimizer, own, to_copies=True)
        for group in optimizer.param_groups:
            group["params"] = [self._copies[parameter] for parameter in group["params"] if id(parameter) in mine]
        try:
            result = plain(optimizer, *args, **kwargs)
        finally:
            for group, parameters in zip(optimizer.param_groups, lists, strict=True):
                group["params"] = parameters
            self._rename_state(optimizer, own, to_copies=False)
            for parameter in own:
                self._copies[parameter].grad = None
        if self.group.world > 1:
            self.group.agree()
        return result

    def _rename_state(self, optimizer: Any, own: Sequence[torch.Tensor], *, to_copies: bool) -> None:
        """The state belongs to the script's parameters, and during the update to their copies."""
        for parameter in own:
            old, new = (parameter, self._copies[parameter])[:: 1 if to_copies else -1]
            state = optimizer.state.pop(old, None)
            if state is not None:
                optimizer.state[new] = _state_on_host(state)

    def _learn(self, parameters: Sequence[torch.Tensor]) -> None:
        """Makes room for parameters that have no copy yet, in memory that all workers share."""
        new = [parameter for parameter in parameters if parameter not in self._copies]
        if not new:
            return
        starts, total = list[int](), 0
        for parameter in new:
            starts.append(total)
            total += -(-parameter.nbytes // ALIGNED) * ALIGNED
        space = self._room(total, pinned=any(parameter.is_cuda for parameter in new))
        for parameter, start in zip(new, starts, strict=True):
            raw = space[start : start + parameter.nbytes]
            # Strides like the parameter's (channels_last): fused optimizers walk through memory.
            laid = laid_like(parameter, raw.view(parameter.dtype))
            self._copies[parameter] = nn.Parameter(laid)
        self._bytes += total

    def _room(self, total: int, *, pinned: bool) -> torch.Tensor:
        if self.group.world == 1:
            return torch.empty(total, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        meeting = self.group.meet(f"central{len(self._meetings)}", total)
        self._meetings.append(meeting)
        if pinned:
            torch.cuda.cudart().cudaHostRegister(meeting.space.data_ptr(), total, 0)
        return meeting.space

    def _saved(self, kind: str, kept: list[int], optimizer: Any) -> str:
        return (
            f"Central storage: the state of {kind}, {size(sum(kept))}, and a copy of the parameters, "
            f"{size(self._bytes)}, are once in the host's memory; no device keeps optimizer state."
        )


def _state_on_host(state: dict[str, Any]) -> dict[str, Any]:
    """State that was loaded from a file lies on the parameter's device until the first step."""
    return {name: value.to("cpu") if isinstance(value, torch.Tensor) else value for name, value in state.items()}
