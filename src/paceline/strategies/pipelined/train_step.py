"""A training step whose loss is computed inside the last stage: forward and backward of micro-batches in turns (1F1B).

A stage begins the backward of a micro-batch as soon as its gradient has come, so that a stage holds the activations of
at most as many micro-batches as there are stages behind it, and one more. The bubble is GPipe's, or smaller if each
worker has several parts of the model (see `orders`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import PacelineError, ScriptError
from paceline.script import tree
from paceline.script.slicing.loss_denominators import Averages
from paceline.spread.stage_tensor import leaf_of
from paceline.strategies.pipelined import orders, streams
from paceline.strategies.pipelined.failure import Failure
from paceline.strategies.pipelined.schedule import Call, Chunk, add_up
from paceline.strategies.pipelined.way_back import StagedModel, summed

Loss = Callable[[Any, Any], torch.Tensor]


class Step(nn.Module):
    """A model and its loss, which are proven together."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, given: Any, target: Any) -> torch.Tensor:
        return self.loss(self.model(*given[0], **given[1]), target)


@dataclass(frozen=True, slots=True)
class Asked:
    """A loss, and the target of the next call."""

    step: Step
    target: Any


class Trainer(Protocol):
    """The part of a pipeline that a step uses."""

    def ask(self, asked: Asked | None) -> None: ...


class TrainStep:
    """`step(*inputs, target)`: leaves the gradients in the parameters, and returns the loss, without a graph. Every
    worker calls it."""

    def __init__(self, strategy: Trainer | None, model: nn.Module, loss: Loss) -> None:
        self._strategy, self._step = strategy, Step(model, loss)

    def __call__(self, *args: Any) -> torch.Tensor:
        *inputs, target = args
        strategy = self._strategy
        if strategy is not None:
            strategy.ask(Asked(self._step, target))
        try:
            found = self._step.model(*inputs)
        finally:
            if strategy is not None:
                strategy.ask(None)
        if isinstance(found, Trained):
            return found.loss
        loss: torch.Tensor = self._step.loss(found, target)
        loss.backward()
        return loss.detach()


@dataclass(frozen=True, slots=True)
class Trained:
    """What a call returns that was asked for a loss."""

    loss: torch.Tensor


@dataclass(frozen=True, slots=True)
class Share:
    """A worker's rows of the batch, and the workers whose gradients are added up."""

    group: Group
    sizes: Sequence[int]  # of the micro-batches of all replicas
    first: int = 0  # number of this replica's first micro-batch

    @property
    def batch(self) -> int:
        return sum(self.sizes)

    def rows(self, value: Any, dim: int, number: int) -> Any:
        """A micro-batch's rows of all tensors that have the batch's; one borrowed row if it has none."""
        start, size = sum(self.sizes[:number]), self.sizes[number]
        if not size:
            start, size = 0, 1

        def cut(leaf: Any) -> Any:
            has = isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == self.batch
            return leaf.narrow(dim, start, size) if has and len(self.sizes) > 1 else leaf

        return tree.replace(value, cut)


def train(
    call: Call,
    model: StagedModel,
    asked: Asked,
    share: Share,
    weights: Sequence[float],
    counted: Averages | None,
    *,
    few_in_flight: bool,
) -> Trained:
    """Runs forward and backward of this replica's micro-batches. Every worker calls it. If a stage raises, all workers
    raise, and no gradient has changed. `weights`: see `MicroBatches.weigh`. `counted`: finds out whether all targets
    count, if they must."""
    schedule, since, failure = model.schedule, perf_counter(), Failure(model.schedule.rows)
    numbers = [n for n in model.mine if model.parameters[n].requires_grad]
    parameters = [leaf_of(model.parameters[n]) for n in numbers]
    total: list[torch.Tensor | None] = [None] * len(parameters)
    losses: list[torch.Tensor] = []
    in_flight: dict[tuple[int, int], tuple[Chunk, list[torch.Tensor]]] = {}
    workers, worker = schedule.group.world, schedule.group.rank
    for op in orders.training(workers, worker, len(call.sizes), schedule.parts, few_in_flight=few_in_flight):
        stage = schedule.stage_of(op.part)
        if op.is_backward:
            chunk, starts = in_flight.pop((op.turn, op.part), (None, []))
            add_up(total, schedule.go_back(chunk, op.turn, stage, starts, parameters, failure, keep=False)[0])
            continue
        done = schedule.advance(call, op.turn, stage, failure)
        if done is None:
            continue
        output, chunk = done
        starts = []
        if stage == schedule.last:
            number = share.first + op.turn
            try:
                target = share.rows(asked.target, call.dim, number)
                with nullcontext() if counted is None else counted.inside():
                    loss = asked.step.loss(output, target) * weights[number]
                if counted is not None and not counted.all_count():
                    failure.note(_ignored_targets())
                    continue
                losses.append(loss.detach())
                chunk.left, starts = [loss], [torch.ones_like(loss)]
            except PacelineError:
                raise
            except Exception as error:
                failure.note(error)
                continue
        in_flight[op.turn, op.part] = chunk, starts
        schedule.clock.most_in_flight = max(schedule.clock.most_in_flight, len(in_flight))
    schedule.clock.total += perf_counter() - since
    return Trained(_finish(call, model, dict(zip(numbers, total, strict=True)), losses, share.group, failure))


def _ignored_targets() -> ScriptError:
    return ScriptError(
        "The loss of the batch is a mean over targets of which some are ignored or weighted: it is not the mean of the "
        "losses of micro-batches.",
        advice="Call the model and the loss in the script: distribute(…) without loss=",
    )


def refuse_gradients(given: Any) -> None:
    """ScriptError if an input needs a gradient."""
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree.leaves(given)):
        raise ScriptError(
            "A step with the loss inside the pipeline has no gradient for its inputs.",
            advice="Detach the inputs, or call the model and the loss in the script: distribute(…) without loss=",
        )


def _finish(
    call: Call,
    model: StagedModel,
    grads: dict[int, torch.Tensor | None],
    losses: list[torch.Tensor],
    group: Group,
    failure: Failure,
) -> torch.Tensor:
    """Gives every worker all gradients, the loss and the random streams of the last stage."""
    schedule = model.schedule
    own = [grads.get(n) for n in range(len(model.parameters))]
    rows = schedule.rows if group is not schedule.group and schedule.rows.world > 1 else None
    found = summed(group, own, model.parameters, failure, schedule.clock, rows)
    for parameter, grad in zip(model.parameters, found, strict=True):
        if grad is not None:
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad
    told = [torch.stack(losses).sum(), call.end] if schedule.has_last else None
    known = [one for one in group.gather_objects(told, "the loss of the last stage") if one is not None]
    if known[0][1] is not None:
        streams.put(known[0][1])
    return torch.stack([loss for loss, _ in known]).sum().to(schedule.device)
