"""What a loss inside a sliced call is an average over: not always rows.

A model that returns its own cross-entropy averages it over the targets that count: padding is ignored, classes have
weights. Such means are put together by what each was divided by. A sum of one and something else cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script.slicing import crossings


class Averages:
    """The averages that the sliced call under way has taken. `watching` is on inside sliced calls."""

    def __init__(self) -> None:
        self.watching = False
        self._taken: list[tuple[torch.Tensor, torch.Tensor]] = []  # value, divisor
        self._uneven = False

    def begin(self) -> None:
        self.watching, self._taken, self._uneven = True, [], False

    def end(self) -> None:
        self.watching = False

    def divisor_of(self, value: Any) -> torch.Tensor | None:
        """What a returned value was divided by, if it is one of the averages taken."""
        return next((divisor for taken, divisor in self._taken if taken is value), None)

    def check_mean_over_rows(self) -> None:
        """A returned value that holds an average, and more, is about to be put together as a mean over rows."""
        if self._uneven:
            raise ScriptError(
                "The model returns a loss that averages over targets of which some are ignored or weighted, together "
                "with something else: its parts from several workers cannot be put together.",
                advice="Return the logits and compute the loss in the script, or run the model whole: --whole NAME",
            )

    def watch(self, plain: Callable[..., Any], default_ignored: int = -100) -> Callable[..., Any]:
        """A loss function of torch's that notes what it divides by."""

        def loss(input: torch.Tensor, target: torch.Tensor, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
            value = plain(input, target, weight, *args, **kwargs)
            mean = kwargs.get("reduction", "mean") == "mean" and not args
            if self.watching and mean and not target.is_floating_point() and not torch.compiler.is_compiling():
                counted = target != kwargs.get("ignore_index", default_ignored)
                divisor = counted.sum() if weight is None else weight[target[counted]].sum()
                self._taken.append((value, divisor.to(torch.float64)))
                self._uneven |= weight is not None or (not counted.is_cuda and not bool(counted.all()))
            return value

        return loss

    def find(self) -> Callable[[], None]:
        """Installs the watch on torch's losses; gives back what takes it out."""
        cross_entropy, nll_loss = F.cross_entropy, F.nll_loss
        F.cross_entropy, F.nll_loss = self.watch(cross_entropy), self.watch(nll_loss)

        def lose() -> None:
            F.cross_entropy, F.nll_loss = cross_entropy, nll_loss

        return lose


def blend_average(value: torch.Tensor, divisor: torch.Tensor, counts: bool, group: Group) -> torch.Tensor:
    """The average over all workers' targets; a worker whose row is borrowed does not count."""
    own = divisor if counts else torch.zeros_like(divisor)
    total = own.clone()
    group.all_reduce(total, "what a loss is divided by")
    share = own / total
    return crossings.blend(torch.where(own > 0, value, torch.zeros_like(value)), share.to(value.dtype), group)
