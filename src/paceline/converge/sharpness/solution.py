"""Measures the sharpness of a script's solution: in worker 0, after the script, on its last steps.

Largest eigenvalue, loss under changes of the weights, and loss along the line from another run's solution. In eval
mode, in the precision of the weights, with kernels that have a second derivative. A failure is reported as a text and
never ends the run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.converge.sharpness.hessian import largest_eigenvalue, loss_along_line, perturbed_loss
from paceline.converge.sharpness.replay import Replay, ReplayedStep, first_line
from paceline.record.private import create
from paceline.record.sharpness import RunSharpness, solution_path, write_sharpness
from paceline.script import rng
from paceline.script.seams.stage import Stage
from paceline.settings import SharpnessSettings

RADIUS = 0.05  # of each tensor's norm
DIRECTIONS = 10
ITERATIONS = 30
TOLERANCE = 1e-2
LEAST = 10.0  # seconds allowed for the eigenvalue at least; else, as long as the run took
PLACES = [-0.25 + 0.0625 * k for k in range(25)]  # positions on the line: 0 and 1 are the solutions


class SolutionMeter:
    """The meter of one worker; only worker 0 measures. Make it after the recorder, so that the record is complete."""

    def __init__(self, stage: Stage, folder: Path, asked: SharpnessSettings) -> None:
        self.stage, self.folder, self.asked = stage, folder, asked
        self.replay = Replay(stage, asked.samples) if stage.group.rank == 0 else None
        self._began, self._limit = time.monotonic(), LEAST
        stage.subscribe(self)

    def install(self) -> Callable[[], None]:
        """Call it after the seams are installed. Returns a function that undoes it."""
        return self.replay.install() if self.replay is not None else lambda: None

    def on_end(self) -> None:
        if self.replay is None or self.stage.aside:
            return
        self._limit = max(LEAST, time.monotonic() - self._began)
        write_sharpness(self.folder, self._measure(self.replay))

    def _measure(self, replay: Replay) -> RunSharpness:
        steps = [step for step in replay.steps if step.is_intact]
        found = RunSharpness(samples=sum(step.samples for step in steps), radius=RADIUS)
        if not steps:
            changed = "the batches were overwritten" if replay.steps else "no backward was seen before a step"
            found.trouble = f"not measured: {replay.trouble or changed}"
            return found
        models = list(dict.fromkeys(model for step in steps for model in step.models))
        weights = [w for group in replay.optimizer.param_groups for w in group["params"] if w.requires_grad]
        if any(weight.dtype not in (torch.float32, torch.float64) for weight in weights):
            found.trouble = "not measured: the weights must be in float32 or float64"
            return found
        with replay.aside(), _measurable(models):
            for part in (self._perturb, self._curve, self._line):
                try:
                    part(found, steps, weights, models)
                except Exception as error:  # out of memory, no second derivative, or anything from a model in eval mode
                    found.trouble = found.trouble or f"{WHAT[part.__name__]}: {first_line(error)}"
        return found

    def _perturb(self, found: RunSharpness, steps: list[ReplayedStep], weights: list[Tensor], models: Any) -> None:
        moved = perturbed_loss(_loss_of, steps, weights, radius=RADIUS, directions=DIRECTIONS)
        found.loss, found.moved, found.worst = map(finite, (moved.loss, moved.mean, moved.worst))
        if found.loss is None:
            raise ArithmeticError("the loss is not a finite number")

    def _curve(self, found: RunSharpness, steps: list[ReplayedStep], weights: list[Tensor], models: Any) -> None:
        if found.loss is None:
            return
        if _has_dead_end(torch.autograd.grad(_loss_of(steps[0]), weights, create_graph=True, allow_unused=True)):
            raise NotImplementedError("a function of the script can be differentiated only once")
        top = largest_eigenvalue(
            _loss_of, steps, weights, iterations=ITERATIONS, tolerance=TOLERANCE, seconds=self._limit
        )
        found.eigenvalue, found.settled, found.iterations = finite(top.eigenvalue), top.settled, top.iterations

    def _line(
        self, found: RunSharpness, steps: list[ReplayedStep], weights: list[Tensor], models: list[nn.Module]
    ) -> None:
        whole = nn.ModuleList(models)
        here = {name: value.detach().clone() for name, value in whole.state_dict().items()}
        if self.asked.keep:
            os.close(create(solution_path(self.folder)))  # with the record's permissions; torch only fills the file
            torch.save({name: value.cpu() for name, value in here.items()}, solution_path(self.folder))
        if not self.asked.line_from or found.loss is None:
            return
        there = torch.load(solution_path(Path(self.asked.line_from)), map_location="cpu", weights_only=True)
        if {n: v.shape for n, v in there.items()} != {n: v.shape for n, v in here.items()}:
            raise ValueError("the weights of the two solutions have different names or shapes")
        losses = loss_along_line(whole, _loss_of, steps, there, here, PLACES)
        found.line = [(place, finite(loss)) for place, loss in zip(PLACES, losses, strict=True)]


def _has_dead_end(grads: tuple[Tensor | None, ...]) -> bool:
    """Whether gradients lead into a function marked as differentiable only once. Autograd, asked for the weights only,
    would silently leave it out."""
    todo, seen = [grad.grad_fn for grad in grads if grad is not None], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if type(node).__name__ == "Error":
            return True
        seen.add(node)
        todo += [before for before, _ in node.next_functions]
    return False


WHAT = {
    "_perturb": "the loss could not be computed again",
    "_curve": "no eigenvalue",
    "_line": "no line to the other solution",
}


def _loss_of(step: ReplayedStep) -> Tensor:
    """The loss with the same random numbers every time, because some models are random in eval mode too."""
    torch.manual_seed(0)
    return step.loss()


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _measurable(models: list[nn.Module]) -> Iterator[None]:
    """Eval mode, and kernels for attention and recurrent layers that can be differentiated twice; restores streams."""
    modules = [module for model in models for module in model.modules()]
    kept, before = [module.training for module in modules], rng.snapshot()
    with ExitStack() as stack:
        for enter in _differentiable(modules):
            stack.enter_context(enter())
        for module in modules:
            module.__dict__["training"] = False
        try:
            yield
        finally:
            for module, training in zip(modules, kept, strict=True):
                module.__dict__["training"] = training
            rng.restore(before)


def _differentiable(modules: list[nn.Module]) -> Iterator[Callable[[], Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    yield lambda: sdpa_kernel(SDPBackend.MATH)
    if any(isinstance(module, nn.RNNBase) for module in modules):
        yield lambda: torch.backends.cudnn.flags(enabled=False)
