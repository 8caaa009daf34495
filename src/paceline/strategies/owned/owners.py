"""Which worker owns a parameter: makes its update, and keeps its optimizer state."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.weak import WeakIdKeyDictionary


class Owners:
    """The same on every worker. An owner never changes: the optimizer's state would have to move."""

    def __init__(self, world: int) -> None:
        self._owners: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.bytes = [0] * world  # of the parameters of each worker

    def learn(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gives each new parameter to the worker that has least, the largest first."""
        new = [parameter for parameter in parameters if parameter not in self._owners]
        for parameter in sorted(new, key=lambda parameter: -parameter.nbytes):
            owner = self.bytes.index(min(self.bytes))
            self._owners[parameter] = owner
            self.bytes[owner] += parameter.nbytes

    def __getitem__(self, parameter: torch.Tensor) -> int:
        return int(self._owners[parameter])
