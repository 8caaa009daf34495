"""Refuses the use of gradients left by a backward that raised, because they differ between workers.

A script that catches the exception usually drops them: `zero_grad`, and the next batch. A script that steps with them
or adds to them would get numbers that plain Python does not give, so the run stops.
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.comm.buckets import Buckets
from paceline.comm.call_site import script_line
from paceline.errors import ScriptError


class HalfDone:
    """The unfinished gradients of one worker. Costs nothing while no backward has raised."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._slots: set[int] = set()  # the same on all workers
        self._where = ""

    def add(self, slots: set[int]) -> None:
        """Notes that a backward raised on every worker, and that some worker has its gradient in these slots."""
        self._slots |= slots
        self._where = script_line()

    def look(self) -> None:
        """Before a backward: forgets the gradients that the script has dropped on all workers. Waits for all."""
        if self._slots:
            known = sorted(self._slots)
            mine = torch.tensor([self._is_there(index) for index in known], dtype=torch.uint8, device="cpu")
            told = self._buckets.group.gather_vectors(mine, "what a backward that raised has left").max(0).values
            self._slots = {index for index, there in zip(known, told.tolist(), strict=True) if there}

    def refuse_more(self) -> None:
        """After a backward: it must not have added to an unfinished gradient."""
        if any(self._buckets.has_reached(index) for index in self._slots):
            raise self._refusal("adds to")

    def refuse_step(self, optimizer: Any) -> None:
        """Before an optimizer step: the optimizer must not hold an unfinished gradient."""
        if self._slots:
            self.look()
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if any(id(self._buckets.slots[index].parameter()) in held for index in self._slots):
                raise self._refusal("steps with")

    def _is_there(self, index: int) -> bool:
        parameter = self._buckets.slots[index].parameter()
        grad = None if parameter is None else parameter.grad
        return grad is not None and bool((grad.coalesce().values() if grad.is_sparse else grad).any())

    def _refusal(self, what: str) -> ScriptError:
        return ScriptError(
            f"The backward at {self._where} raised, the script caught the exception, and now it {what} the gradients "
            "computed before the exception: they differ from worker to worker.",
            advice="Drop these gradients where the exception is caught: optimizer.zero_grad()",
        )
