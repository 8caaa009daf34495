"""Compares what the workers are about to update with: options and gradients, what a script puts into divided tensors,
and losses. For strategies under which each update is made by one worker, or each worker updates its own part.

Under `Mirrored`, workers with different learning rates or gradients train different models, and the comparison of
weights finds it. If each update is made by one worker, weights are equal whatever the others would have done, and the
mixture is silently wrong. So the workers compare options and gradients before each update.

If each worker keeps its own part of a weight, weights themselves cannot be compared: a worker with another learning
rate, or other noise on a gradient, would silently give its part another update. So whatever enters a divided tensor
(the operands of in-place and elementwise functions, new values) is folded into a few numbers, which the workers compare
before an update and at the end of the script (`Operands`). A fold is a sum with fixed factors, so that rounding on
different processors changes it by little:

    fold = Σ factor_i · f(value_i)         f(v) = asinh(v · 10^12): relative differences count, at any scale

Losses travel in the tail of the gradients (`LossCheck`). A loss on the host is compared after its own backward. A loss
on a GPU is copied while the GPU works, and compared after the next backward, so that no worker waits for the GPU; the
last one at the end of the script.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from paceline.agreement.digest import COARSE, TOLERANCE, Described, described, digest, sketch
from paceline.agreement.report import ARGUMENTS_ADVICE, WEIGHTS_ADVICE, by_worker
from paceline.comm.call_site import script_line
from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.script import tree
from paceline.script.losses import LossReader, LossTicket
from paceline.script.rows.catalogue import Rows
from paceline.torch_private import is_capturing

WHAT = "the comparison of updates"
GOLDEN = 0.6180339887498949
LEAST = 1e-12  # numbers below it count as zero
ROUNDING = 1e-4  # of one value: what is left after sums in another order
SAME = 1e-4  # relative: losses of workers that hold the same batch differ by rounding at most


def compare(optimizer: Any, updated: Sequence[torch.Tensor], group: Group, tell: Callable[[str], None]) -> None:
    """PartedError if options or gradients differ between the workers by more than rounding. Every worker calls it;
    waits for all."""
    gradients = [parameter.grad for parameter in updated if parameter.grad is not None]
    options = _options(optimizer)
    code = zlib.crc32(repr(options).encode())
    mine = torch.tensor([code, len(gradients), *(int(number) for number in digest(gradients))], device="cpu")
    rows = group.gather_vectors(mine, WHAT)
    if bool((rows == rows[0]).all()):
        return
    if bool((rows[:, 0] != rows[0, 0]).any()):
        _explain_options(options, group)
    if bool((rows[:, 1] != rows[0, 1]).any()):
        raise PartedError(
            f"The workers' updates at {script_line()} differ: parameters with a gradient: "
            + ", ".join(f"{int(number)} on worker {rank}" for rank, number in enumerate(rows[:, 1])),
            advice=WEIGHTS_ADVICE,
        )
    _explain_gradients(gradients, group, tell)


def compare_options(optimizer: Any, group: Group, riders: Sequence[int] = ()) -> torch.Tensor:
    """PartedError if the options (learning rates, …) differ between the workers, of which each updates its own shards.
    Every worker calls it; waits for all. Returns the `riders` of all workers, one row for each: numbers that go with
    the message."""
    options = _options(optimizer)
    rows = group.gather_vectors(torch.tensor([zlib.crc32(repr(options).encode()), *riders], device="cpu"), WHAT)
    if bool((rows[:, 0] != rows[0, 0]).any()):
        _explain_options(options, group)
    return rows[:, 1:]


def compare_arguments(given: Any, group: Group, riders: Sequence[int] = ()) -> torch.Tensor:
    """PartedError if a call's arguments differ between workers that compute parts of the same rows. Every worker calls
    it; waits for all. Returns the `riders` of all workers, as `compare_options` does."""
    tensors = [leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Rows)]
    shapes = zlib.crc32(repr([(tuple(leaf.shape), leaf.dtype) for leaf in tensors]).encode())
    total = sum(int(number) for number in digest(tensors)) % 2**62
    rows = group.gather_vectors(torch.tensor([shapes, total, *riders], device="cpu"), "the comparison of arguments")
    if bool((rows[:, :2] != rows[0, :2]).any()):
        raise PartedError(
            f"The arguments of the model's call at {script_line()} differ between the workers.", advice=ARGUMENTS_ADVICE
        )
    return rows[:, 2:]


def _options(optimizer: Any) -> list[list[Any]]:
    """The options of each group of parameters, as numbers and texts."""
    return [
        [[name, _plain(value)] for name, value in sorted(group.items()) if name != "params"]
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _explain_options(options: list[list[Any]], group: Group) -> None:
    told = group.gather_objects(options, WHAT)
    for rank, theirs in enumerate(told):
        for number, (one, other) in enumerate(zip(told[0], theirs, strict=True)):
            for (name, first), (_, second) in zip(one, other, strict=True):
                if repr(first) != repr(second):
                    raise PartedError(
                        f"The workers' updates at {script_line()} differ: {name} of parameter group {number} is "
                        f"{first} on worker 0 and {second} on worker {rank}.",
                        advice=WEIGHTS_ADVICE,
                    )


def _explain_gradients(gradients: Sequence[torch.Tensor], group: Group, tell: Callable[[str], None]) -> None:
    """Rounding is harmless, because the owner's numbers count."""
    mine = [described(f"parameter {number} (shape {tuple(g.shape)})", g) for number, g in enumerate(gradients)]
    told = group.gather_objects([list(one.fetched()) for one in mine], WHAT)
    for column in zip(*told, strict=True):
        first, *others = (Described(*row) for row in column)
        if not all(other.is_like(first) for other in others):
            raise PartedError(
                f"The workers' updates at {script_line()} differ: the norm of the gradient of {first.name} is "
                f"{by_worker([one.norm for one in (first, *others)])}.",
                advice=WEIGHTS_ADVICE,
            )
    tell("The workers' gradients differ by rounding before an update: those of each parameter's owner count.")


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
        self.judge(group.gather_vectors(torch.tensor(self.shown(), device="cpu"), WHAT))

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
            f"Worker {rank} writes other values into sharded weights or gradients than worker 0, at {script_line()}.",
            advice=WEIGHTS_ADVICE,
        )


def _factor(number: int) -> float:
    """Between 1/2 and 3/2."""
    return 0.5 + number * GOLDEN % 1.0


def _scaled(number: float) -> float:
    if math.isfinite(number):
        return math.asinh(number / LEAST)
    return 100.0 if math.isnan(number) else math.copysign(50.0, number)


class LossCheck:
    """The losses of one worker. After a backward every worker sends its loss, or `late` of it, and calls `compare`."""

    def __init__(self) -> None:
        self._reader = LossReader()
        self._late: tuple[LossTicket, str] | None = None  # the loss on its way from the GPU, and its line
        self._line = ""  # of the loss that is being compared

    def late(self, loss: torch.Tensor) -> float:
        """Starts the copy of a loss that is not on the host. Returns the one before, or 0.0."""
        value = self._arrived()
        if loss.is_cuda and is_number(loss) and not is_capturing():
            ticket = self._reader.take(loss)
            self._reader.send()
            self._late = None if ticket is None else (ticket, script_line())
        return value

    def _arrived(self) -> float:
        """The last loss of a GPU. It was computed a whole step ago: hardly a wait."""
        if self._late is None:
            return 0.0
        (ticket, self._line), self._late = self._late, None
        ticket.is_here(wait=True)
        return ticket.value or 0.0

    def compare(self, losses: Sequence[float], *, late: bool) -> None:
        """PartedError if the workers' losses differ by more than rounding."""
        low, high = min(losses), max(losses)
        if all(map(math.isfinite, losses)) and high - low > SAME * max(abs(low), abs(high), 1e-6):
            raise PartedError(
                f"The losses at {self._line if late else script_line()} differ between the workers: "
                + ", ".join(f"worker {rank} {value:.6g}" for rank, value in enumerate(losses)),
                advice="Something in the script differs from worker to worker: randomness seeded from the clock or the "
                "operating system, the order of a set or of os.listdir, or time. Seed or sort it.",
            )

    def end(self, group: Group) -> None:
        """Compares the last loss of a GPU. Every worker calls it; waits for all of them."""
        if self._late is not None:
            mine = torch.tensor([self._arrived()], dtype=torch.float64, device="cpu")
            self.compare(group.gather_vectors(mine, "the last loss").flatten().tolist(), late=True)


def is_number(loss: torch.Tensor) -> bool:
    return loss.dim() == 0 and loss.is_floating_point()
