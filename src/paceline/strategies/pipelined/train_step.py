"""A training step whose loss is computed inside the last stage: forward and backward of micro-batches in turns (1F1B).

A stage begins the backward of a micro-batch as soon as its gradient has come, so that a stage holds the activations of
at most as many micro-batches as there are stages behind it, and one more. The bubble is GPipe's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.slicing.comparing import close
from paceline.script.slicing.dry_run import undisturbed
from paceline.strategies.pipelined import streams
from paceline.strategies.pipelined.schedule import Call, Chunk, add_up
from paceline.strategies.pipelined.segment import Parcel
from paceline.strategies.pipelined.way_back import StagedModel, summed

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(slots=True)
class Asked:
    """A loss, and the target of the next call."""

    loss: Loss
    target: Any
    weights: dict[Any, bool] = field(default_factory=dict)  # by kind of target: whether the loss is a mean over rows


class Trainer(Protocol):
    """The part of a pipeline that a step uses."""

    def ask(self, asked: Asked | None) -> None: ...


class TrainStep:
    """`step(*inputs, target)`: leaves the gradients in the parameters, and returns the loss, without a graph. Every
    worker calls it."""

    def __init__(self, strategy: Trainer | None, model: nn.Module, loss: Loss) -> None:
        self._strategy, self._model, self._loss = strategy, model, loss
        self._weights: dict[Any, bool] = {}

    def __call__(self, *args: Any) -> torch.Tensor:
        *inputs, target = args
        strategy = self._strategy
        if strategy is not None:
            strategy.ask(Asked(self._loss, target, self._weights))
        try:
            found = self._model(*inputs)
        finally:
            if strategy is not None:
                strategy.ask(None)
        if isinstance(found, Trained):
            return found.loss
        loss = self._loss(found, target)
        loss.backward()
        return loss.detach()


@dataclass(frozen=True, slots=True)
class Trained:
    """What a call returns that was asked for a loss."""

    loss: torch.Tensor


def train(call: Call, model: StagedModel, asked: Asked, *, few_in_flight: bool) -> Trained:
    """Runs forward and backward of all micro-batches. Every worker calls it."""
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree.leaves(call.given)):
        raise ScriptError(
            "A step with the loss inside the pipeline has no gradient for its inputs.",
            advice="Detach the inputs, or call the model and the loss in the script: distribute(…) without loss=",
        )
    schedule, since = model.schedule, perf_counter()
    weights = _weights(call, model, asked)
    targets = [_rows(asked.target, call, turn) for turn in range(len(call.sizes))]
    parameters = [p for n in model.mine if (p := model.parameters[n]).requires_grad]
    numbers = [n for n in model.mine if model.parameters[n].requires_grad]
    total: list[torch.Tensor | None] = [None] * len(parameters)
    losses: list[torch.Tensor] = []
    in_flight: deque[tuple[Chunk, list[torch.Tensor]]] = deque()
    ahead = schedule.last - schedule.stage if few_in_flight else len(call.sizes)

    def back() -> None:
        chunk, starts = in_flight.popleft()
        add_up(total, schedule.go_back(chunk, starts, parameters, keep=False)[0])

    for turn, weight in enumerate(weights):
        parcel = schedule.receive(learning=True) if schedule.stage else None
        assert parcel is None or isinstance(parcel, Parcel)
        output, chunk = schedule.compute(call, turn, parcel)
        starts: list[torch.Tensor] = []
        if schedule.stage == schedule.last:
            loss = asked.loss(output, targets[turn]) * weight
            losses.append(loss.detach())
            chunk.left, starts = [loss], [torch.ones_like(loss)]
        in_flight.append((chunk, starts))
        schedule.clock.most_in_flight = max(schedule.clock.most_in_flight, len(in_flight))
        if len(in_flight) > ahead:
            back()
    while in_flight:
        back()
    schedule.clock.total += perf_counter() - since
    return Trained(_finish(call, model, dict(zip(numbers, total, strict=True)), losses))


def _finish(
    call: Call, model: StagedModel, grads: dict[int, torch.Tensor | None], losses: list[torch.Tensor]
) -> torch.Tensor:
    """Gives every worker all gradients, the loss and the random streams of the last stage."""
    schedule = model.schedule
    found = summed(schedule.group, [grads.get(n) for n in range(len(model.parameters))], model.parameters)
    for parameter, grad in zip(model.parameters, found, strict=True):
        if grad is not None:
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
    told = None
    if schedule.stage == schedule.last:
        told = [torch.stack(losses).sum(), streams.packed() if schedule.cutting.draws else None]
    loss, at = schedule.group.gather_objects(told, "the loss of the last stage")[schedule.last]
    if at is not None:
        streams.put(at)
    shown: torch.Tensor = loss.to(schedule.device)
    return shown


def _weights(call: Call, model: StagedModel, asked: Asked) -> Sequence[float]:
    """By what the losses of micro-batches are multiplied, so that their sum is the loss of the batch. Found out at the
    first step: every worker gets the output of the batch, and compares."""
    batch = sum(call.sizes)
    key = (len(call.sizes) > 1, tree.structure(asked.target))
    if len(call.sizes) == 1:
        return [1.0]
    if key not in asked.weights:
        module = model.schedule.cutting.segments.module
        with torch.no_grad(), undisturbed(module, still=()):
            quiet = Call(call.plain, call.given, call.cuts, call.sizes, call.dim, call.drawing)
            output = model.schedule.forward(quiet).output
            whole = asked.loss(output, asked.target)
            parts = [asked.loss(_rows(output, call, t), _rows(asked.target, call, t)) for t in range(len(call.sizes))]
            mean = sum(part * size / batch for part, size in zip(parts, call.sizes, strict=True))
            if not close(mean, whole) and not close(sum(parts), whole):
                raise ScriptError(
                    "The loss of the batch is neither the mean nor the sum of the losses of its rows.",
                    advice="Call the model and the loss in the script: distribute(…) without loss=",
                )
            asked.weights[key] = close(mean, whole)
    return [size / batch if asked.weights[key] else 1.0 for size in call.sizes]


def _rows(value: Any, call: Call, turn: int) -> Any:
    """A micro-batch's rows of all tensors that have the batch's."""
    batch, start, dim = sum(call.sizes), sum(call.sizes[:turn]), call.dim

    def cut(leaf: Any) -> Any:
        has = isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == batch
        return leaf.narrow(dim, start, call.sizes[turn]) if has and len(call.sizes) > 1 else leaf

    return tree.replace(value, cut)
