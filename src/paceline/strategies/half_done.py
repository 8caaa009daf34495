"""Gradients left by a backward that raised: they differ from worker to worker, so nobody may use them.

A script that catches the exception drops them, most often: `zero_grad`, and the next batch. A script that steps with
them, or adds to them, would get numbers that plain Python does not have. It is refused.
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.comm.buckets import Buckets
from paceline.comm.call_site import script_line
from paceline.errors import ScriptError


class HalfDone:
    """Of one worker. Costs nothing while no backward has raised."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._slots: set[int] = set()  # the same on all workers
        self._where = ""

    def add(self, slots: set[int]) -> None:
        """A backward raised, on every worker, and some worker has a gradient of it in these slots."""
        self._slots |= slots
        self._where = script_line()

    def look(self) -> None:
        """A backward begins: forgets the gradients that the script has dropped on all workers. Waits for all."""
        if self._slots:
            known = sorted(self._slots)
            mine = torch.tensor([self._is_there(index) for index in known], dtype=torch.uint8)
            told = self._buckets.group.gather_vectors(mine, "what a backward that raised has left").max(0).values
            self._slots = {index for index, there in zip(known, told.tolist(), strict=True) if there}

    def refuse_more(self) -> None:
        """A backward has ended: it must not have added to such a gradient."""
        if any(self._buckets.has_reached(index) for index in self._slots):
            raise self._refusal("adds to")

    def refuse_step(self, optimizer: Any) -> None:
        """An optimizer is about to step: it must not have such a gradient."""
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
            f"The script caught an exception of the backward at {self._where}, and {what} the gradients that this "
            "backward had computed before it raised: they differ from worker to worker.",
            advice="Drop these gradients where the exception is caught: optimizer.zero_grad()",
        )
