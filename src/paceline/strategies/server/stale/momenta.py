"""The momentum of each worker, on one server: SGD's buffers, which are put into the optimizer for one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

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
