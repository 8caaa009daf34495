"""Compares what a script puts into divided tensors: numbers and plain tensors that every worker must hold equal.

Each worker keeps its own part of a weight, so that weights themselves cannot be compared: a worker with another
learning rate, or other noise on a gradient, would silently give its part another update. So whatever enters a divided
tensor (the operands of in-place and elementwise functions, new values) is folded into a few numbers, which the workers
compare before an update and at the end of the script.

A fold is a sum with fixed factors, so that rounding on different processors changes it by little:

    fold = Σ factor_i · f(value_i)         f(v) = asinh(v · 10^12): relative differences count, at any scale
"""

from __future__ import annotations

import math
import struct
from typing import Any, ClassVar

import torch

from paceline.agreement.digest import sketch
from paceline.agreement.report import COARSE, TOLERANCE, WEIGHTS_ADVICE
from paceline.comm.call_site import script_line
from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.script.rows.catalogue import Rows

GOLDEN = 0.6180339887498949
LEAST = 1e-12  # numbers below it count as zero
ROUNDING = 1e-4  # of one value: what is left after sums in another order


class Operands:
    """What this worker has put into divided tensors since the last comparison."""

    WIDTH: ClassVar[int] = 2  # numbers that a worker shows

    def __init__(self, divided: type | tuple[type, ...]) -> None:
        """`divided`: the classes of these tensors."""
        self._divided = divided
        self.count = 0
        self._fold = 0.0
        self._sketches: list[tuple[int, float, torch.Tensor]] = []  # on their devices until the comparison

    def note(self, value: Any) -> None:
        """Adds the numbers and plain tensors in a function's arguments."""
        if isinstance(value, (list, tuple)):
            for one in value:
                self.note(one)
        elif isinstance(value, dict):
            self.note(list(value.values()))
        elif isinstance(value, torch.Tensor):
            if not isinstance(value, self._divided) and not isinstance(value, Rows):
                self._note_tensor(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            self._add(float(value))

    def _note_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.is_cpu and not tensor.dim() and not tensor.is_complex():
            self._add(float(tensor.detach()))
            return
        about = sketch(tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.detach().double())
        if about is not None:
            self.count += 1
            coarse = tensor.dtype not in TOLERANCE and tensor.is_floating_point()
            self._sketches.append((self.count, ROUNDING / COARSE if coarse else 1.0, about))

    def _add(self, number: float, weight: float = 1.0) -> None:
        self.count += 1
        self._fold += weight * _factor(self.count) * _scaled(number)

    def compare(self, group: Group) -> None:
        """PartedError if the workers have put different numbers into divided tensors. Every worker calls it; waits for
        all."""
        self.judge(group.gather_vectors(torch.tensor(self.shown(), device="cpu"), "the comparison of updates"))

    def shown(self) -> list[int]:
        """What this worker shows the others: how many values, and the bits of the fold."""
        for number, weight, about in self._sketches:
            projection, square = about.tolist()
            norm = math.sqrt(square) if square >= 0 else math.nan
            share = projection / norm if norm > LEAST else 0.0
            self._fold += weight * _factor(number) * (_scaled(norm) + (share if math.isfinite(share) else 1.0))
        self._sketches.clear()
        return [self.count, struct.unpack("<q", struct.pack("<d", self._fold))[0]]

    def judge(self, shown: torch.Tensor) -> None:
        """PartedError if the rows, one for each worker, differ by more than rounding."""
        counts, folds = shown[:, 0], shown[:, 1].contiguous().view(torch.float64)
        count, self.count, self._fold = self.count, 0, 0.0
        gap = float((folds - folds[0]).abs().max())
        if bool((counts == counts[0]).all()) and gap <= ROUNDING * math.sqrt(max(count, 1)):
            return
        rank = int((shown != shown[0]).any(1).nonzero().flatten()[0])
        raise PartedError(
            f"The workers' updates differ at {script_line()}: numbers that the script puts into weights or gradients "
            f"that the workers have divided are not the same on worker 0 and worker {rank}.",
            advice=WEIGHTS_ADVICE,
        )


def _factor(number: int) -> float:
    """Between 1/2 and 3/2."""
    return 0.5 + number * GOLDEN % 1.0


def _scaled(number: float) -> float:
    if math.isfinite(number):
        return math.asinh(number / LEAST)
    return 100.0 if math.isnan(number) else math.copysign(50.0, number)
