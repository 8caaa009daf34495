"""What a server does about stale gradients: gradients of parameters that other workers have changed since.

Stale gradients act like additional momentum, and with the script's own momentum on top training diverges. `momentum`:
every worker has a momentum of its own, with Nesterov's step (DANA, Hakimi et al. 2019), so that the momentum of one
worker does not carry another one's stale gradients. `rate`: the learning rate is divided by the staleness.
benchmarks/stale_gradients.py compares these and others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Kind = Literal["momentum", "rate", "none"]

MEMORY = 0.05  # of the mean staleness and of the mean norm: the weight of an update
FRESH = 0.5  # power of mean / staleness: how much less a gradient counts that is staler than the mean
STEADY = 3.0  # mean staleness up to which the learning rate is the script's; with more, a high one diverges
LARGEST = 2.0  # × the mean norm: what a gradient counts at most while staleness may make training oscillate


@dataclass(frozen=True)
class Plan:
    """How one push is applied."""

    rate: float = 1.0  # × the learning rate
    scale: float = 1.0  # × the gradient
    own: bool = False  # with the worker's own momentum


class Correction:
    """One optimizer's, on one server. It remembers the staleness and the norms of the latest updates."""

    def __init__(self, kind: Kind, optimizer: str) -> None:
        self.kind, self._optimizer = kind, optimizer
        self._staleness = _Mean()
        self._norm = _Mean()

    def plan(self, options: Sequence[dict[str, Any]], staleness: int, norm: float) -> Plan:
        """For an asynchronous push; `norm` is its gradient's, 0 if the worker does not tell it."""
        before = self._staleness.value
        mean = max(1.0, self._staleness.note(staleness))
        if self.kind == "none":
            return Plan()
        if self.kind == "rate" or not has_momenta(self._optimizer, options):
            # Not less than the mean: momentum carries other workers' stale gradients into a fresh update.
            return Plan(rate=1.0 / max(1.0, staleness, before))
        scale = min(1.0, mean / max(1, staleness)) ** FRESH  # a gradient of a slow worker counts less
        if norm > 0.0 and math.isfinite(norm):
            most = LARGEST * (self._norm.value or scale * norm)
            found = scale * norm
            self._norm.note(min(found, most))
            scale *= min(1.0, most / found)
        return Plan(rate=min(1.0, STEADY / mean), scale=scale, own=True)


class _Mean:
    """Of the latest values: of all, while they are few."""

    def __init__(self) -> None:
        self.value, self._count = 0.0, 0

    def note(self, value: float) -> float:
        self._count += 1
        self.value += (value - self.value) * max(MEMORY, 1.0 / self._count)
        return self.value


def has_momenta(optimizer: str, options: Sequence[dict[str, Any]]) -> bool:
    """Whether `momentum` applies: to SGD with momentum. For all other optimizers it means `rate`."""
    return (
        optimizer == "torch.optim.SGD"
        and any(group["momentum"] for group in options)
        and not any(group["dampening"] for group in options)
    )


# -- the momentum of each worker --------------------------------------------------------------------------------------


Buffers = dict[int, torch.Tensor]  # by the parameter's place in the shard
NAME = "momentum_buffer"


class Momenta:
    """A worker begins without momentum. Only those that were there when a state was loaded begin with it."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._of: dict[int, Buffers] = {}
        self._base: Buffers = {}
        self._heirs: set[int] = set()

    def step(self, optimizer: torch.optim.Optimizer, worker: int) -> None:
        """A step of Nesterov's with this worker's momentum. Changes the groups' options."""
        buffers = self._of.get(worker)
        if buffers is None:
            heir = worker in self._heirs
            self._heirs.discard(worker)
            buffers = self._of[worker] = {at: each.clone() for at, each in self._base.items()} if heir else {}
        places = {id(parameter): at for at, parameter in enumerate(self._parameters)}
        for group in optimizer.param_groups:
            group["nesterov"] = bool(group["momentum"])
            for parameter in group["params"] if group["momentum"] else ():
                at = places[id(parameter)]
                if parameter.grad is not None and at not in buffers:
                    buffers[at] = torch.zeros_like(parameter)
                if at in buffers:
                    optimizer.state[parameter][NAME] = buffers[at]
        optimizer.step()
        for parameter in self._parameters:
            optimizer.state.get(parameter, {}).pop(NAME, None)

    def leave(self, worker: int) -> None:
        """A worker is gone, and its momentum with it; that of the last one is kept for the optimizer's state."""
        self._heirs.discard(worker)
        if worker in self._of and len(self._of) == 1:
            self._base = self._of[worker]
        self._of.pop(worker, None)

    def load(self, optimizer: torch.optim.Optimizer, workers: Iterable[int]) -> None:
        """Takes the optimizer's buffers as the momentum of these workers."""
        self._of.clear()
        states = ((at, optimizer.state.get(parameter, {})) for at, parameter in enumerate(self._parameters))
        self._base = {at: state[NAME] for at, state in states if state.get(NAME) is not None}
        self._heirs = set(workers)

    def mean(self) -> Buffers:
        """The momentum as one process would have it: the mean of all workers'. Empty if no step used a momentum."""
        every = [*self._of.values(), *[self._base] * len(self._heirs)] if self._of else [self._base]
        found: Buffers = {}
        for at, parameter in enumerate(self._parameters):
            held = [buffers[at] for buffers in every if at in buffers]
            if held:
                total = torch.zeros_like(parameter)
                for buffer in held:
                    total.add_(buffer, alpha=1.0 / len(every))
                found[at] = total
        return found
