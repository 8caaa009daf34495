"""Sharpness of a minimum: the largest eigenvalue of the loss's Hessian, the loss under small changes of the weights,
and the loss on the line between two solutions.

Large batches end in sharper minima, and sharper minima generalise worse. All functions take `loss_of(batch)`, which
returns the mean loss of a batch, and batches that can be iterated several times (a list); losses are weighted by batch
size. Put the model into eval mode first: batch norm in training mode would change during the measurement. The weights
are restored when a function returns, also after an error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

LossOf = Callable[[Any], Tensor]


class Sharpness(msgspec.Struct, kw_only=True):
    """The largest eigenvalue of the Hessian; `settled` if the last iterations agreed."""

    eigenvalue: float
    iterations: int
    settled: bool


class Perturbed(msgspec.Struct, kw_only=True):
    """The loss at the solution, and after random changes of the weights by `radius` times each tensor's norm."""

    radius: float
    loss: float
    mean: float
    spread: float  # standard deviation over the directions
    worst: float


def largest_eigenvalue(
    loss_of: LossOf,
    batches: Sequence[Any],
    parameters: Iterable[Tensor],
    *,
    iterations: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
    seconds: float = math.inf,
) -> Sharpness:
    """The largest eigenvalue, by power iteration: each iteration takes a Hessian-vector product, about two backwards
    per batch. No iteration starts after `seconds`.

    Power iteration finds the eigenvalue with the largest absolute value. If that one is negative (a saddle), or does
    not converge because of another one of equal size and opposite sign, a second iteration uses the Hessian plus that
    size times the identity, which has no negative eigenvalue.
    """
    weights = [parameter for parameter in parameters if parameter.requires_grad]
    end = time.monotonic() + seconds

    def product(vector: list[Tensor]) -> list[Tensor]:
        return hessian_vector(loss_of, batches, weights, vector)

    found, size = _power(product, _random_like(weights, seed), iterations, tolerance, end)
    if not math.isfinite(size) or (found.eigenvalue >= 0 and (found.settled or time.monotonic() > end)):
        return found

    def shifted(vector: list[Tensor]) -> list[Tensor]:
        return [h + size * v for h, v in zip(product(vector), vector, strict=True)]

    again, _ = _power(shifted, _random_like(weights, seed + 1), iterations, tolerance, end)
    return Sharpness(
        eigenvalue=again.eigenvalue - size, iterations=found.iterations + again.iterations, settled=again.settled
    )


def hessian_vector(
    loss_of: LossOf, batches: Sequence[Any], weights: Sequence[Tensor], vector: Sequence[Tensor]
) -> list[Tensor]:
    """The Hessian of the loss over all batches, times a vector, without storing the Hessian."""
    total = [torch.zeros_like(weight) for weight in weights]
    samples = 0
    with torch.enable_grad():
        for batch in batches:
            size = _size(batch)
            grads = torch.autograd.grad(loss_of(batch), weights, create_graph=True, allow_unused=True)
            pairs = [(g, v) for g, v in zip(grads, vector, strict=True) if g is not None and g.requires_grad]
            samples += size
            if not pairs:
                continue
            along = torch.stack([(g * v).sum() for g, v in pairs]).sum()
            found = torch.autograd.grad(along, weights, allow_unused=True)
            for sum_, part in zip(total, found, strict=True):
                if part is not None:
                    sum_.add_(part.detach(), alpha=size)
    return [part.div_(max(1, samples)) for part in total]


def perturbed_loss(
    loss_of: LossOf,
    batches: Sequence[Any],
    parameters: Iterable[Tensor],
    *,
    radius: float = 0.01,
    directions: int = 10,
    seed: int = 0,
) -> Perturbed:
    """The loss after each tensor is moved by `radius` times its norm, in `directions` random directions."""
    weights = list(parameters)
    loss = mean_loss(loss_of, batches)
    losses = []
    with _put_back(weights) as kept, torch.no_grad():
        for direction in range(directions):
            for weight, old, way in zip(weights, kept, _random_like(weights, seed + direction), strict=True):
                length = way.norm()
                weight.copy_(old + way * (radius * old.norm() / length) if length > 0 else old)
            losses.append(mean_loss(loss_of, batches))
    mean = math.fsum(losses) / len(losses)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in losses) / max(1, len(losses) - 1))
    return Perturbed(radius=radius, loss=loss, mean=mean, spread=spread, worst=max(losses))


def loss_along_line(
    model: nn.Module,
    loss_of: LossOf,
    batches: Sequence[Any],
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    at: Sequence[float],
) -> list[float]:
    """The loss at points of the line between two solutions, given as state_dicts: 0 is the start, 1 the end, and
    numbers beyond are allowed. Floating-point buffers (running statistics) are interpolated; others are the start's."""
    own = model.state_dict(keep_vars=True)
    losses = []
    with _put_back(list(own.values())), torch.no_grad():
        for way in at:
            for name, tensor in own.items():
                a, b = start[name].to(tensor.device), end[name].to(tensor.device)
                tensor.copy_(torch.lerp(a, b, way) if tensor.is_floating_point() else a)
            losses.append(mean_loss(loss_of, batches))
    return losses


@torch.no_grad()
def mean_loss(loss_of: LossOf, batches: Sequence[Any]) -> float:
    """The mean loss over all samples."""
    sizes = [_size(batch) for batch in batches]
    total = math.fsum(float(loss_of(batch)) * size for batch, size in zip(batches, sizes, strict=True))
    return total / max(1, sum(sizes))


def _power(
    product: Callable[[list[Tensor]], list[Tensor]],
    vector: list[Tensor],
    iterations: int,
    tolerance: float,
    end: float,
) -> tuple[Sharpness, float]:
    """The eigenvalue with the largest absolute value, and that absolute value."""
    vector = _divide(vector, _norm(vector))
    before, size, alike = math.inf, 0.0, 0
    for iteration in range(1, iterations + 1):
        image = product(vector)
        eigenvalue = sum(float((h * v).sum()) for h, v in zip(image, vector, strict=True))
        size = _norm(image)
        if not size > 0 or not math.isfinite(size):
            return Sharpness(eigenvalue=eigenvalue, iterations=iteration, settled=size == 0), size
        alike = alike + 1 if abs(eigenvalue - before) <= tolerance * size else 0
        # Three times, because once may be chance. The size check rules out a plateau between two eigenvalues.
        if alike >= 3 and abs(eigenvalue) > (1 - 10 * tolerance) * size:
            return Sharpness(eigenvalue=eigenvalue, iterations=iteration, settled=True), size
        before, vector = eigenvalue, _divide(image, size)
        if time.monotonic() > end:
            break
    return Sharpness(eigenvalue=before, iterations=iteration, settled=False), size


@contextmanager
def _put_back(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        yield kept
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, kept, strict=True):
                tensor.copy_(old)


def _random_like(weights: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Drawn on the host, so that the directions do not depend on the device, and without the script's own stream."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(weight.shape, generator=generator, dtype=torch.float64, device="cpu").to(
            weight.device, weight.dtype
        )
        for weight in weights
    ]


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _divide(tensors: list[Tensor], by: float) -> list[Tensor]:
    return [tensor / by for tensor in tensors]


def _size(batch: Any) -> int:
    """The number of samples of a batch: its `samples` attribute, or the length of its first tensor."""
    if (samples := getattr(batch, "samples", None)) is not None:
        return int(samples)
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return int(batch.shape[0]) if batch.dim() else 1
