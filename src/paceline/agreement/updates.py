"""Compares what the workers are about to update with: an owner's update counts for all workers.

Under `Mirrored`, workers with different learning rates or gradients train different models, and the comparison of
weights finds it. If each update is made by one worker, weights are equal whatever the others would have done, and the
mixture is silently wrong. So the workers compare options and gradients before each update.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.agreement.digest import digest, sketch
from paceline.agreement.report import ARGUMENTS_ADVICE, COARSE, TOLERANCE, WEIGHTS_ADVICE
from paceline.comm.call_site import script_line
from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.script import tree
from paceline.script.rows.catalogue import Rows

WHAT = "the comparison of updates"


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
    for number, gradient in enumerate(gradients):
        about = sketch(gradient)
        mine = torch.zeros(2, dtype=torch.float64, device="cpu") if about is None else about.cpu()
        rows = group.gather_vectors(mine, WHAT)
        gap = float((rows[:, 0] - rows[0, 0]).abs().max())
        size = math.sqrt(float(rows[:, 1].max()))
        if not gap <= TOLERANCE.get(gradient.dtype, COARSE) * size:
            norms = ", ".join(f"{math.sqrt(row[1]):.9g} on worker {rank}" for rank, row in enumerate(rows.tolist()))
            raise PartedError(
                f"The workers' updates at {script_line()} differ: the norm of the gradient of parameter {number} "
                f"(shape {tuple(gradient.shape)}) is {norms}.",
                advice=WEIGHTS_ADVICE,
            )
    tell("The workers' gradients differ by rounding before an update: those of each parameter's owner count.")
