"""Measures gradient noise in a run, from gradients that exist anyway: those of a small batch and of the whole batch.

With several workers: the norm of this worker's own gradients before they are summed, and the norm of the sum. With one
worker: the norm after the first and after the last of the backwards that a step accumulates. Each worker writes its own
lines and does not wait for others: every line is an unbiased estimate (see `critical_batch`). Steps are skipped if
measuring takes more than `SHARE` of the time, and if the gradients are unsuitable: not zero at first, sparse, or of
micro-batches of different sizes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.converge.noise.critical_batch import estimates
from paceline.record.noise import Noise
from paceline.record.writer import StepWriter
from paceline.script.losses import LossReader, LossTicket
from paceline.script.rows.crossings import Split
from paceline.script.seams.stage import Stage
from paceline.script.seams.strategy import Strategy
from paceline.torch_private import plain_grad

SHARE = 0.005  # of the time, at most
WARM_UP = 2  # steps that are not measured
TRIED = 4  # measured steps from which their cost is taken
BANDWIDTH = 1e12  # bytes per second, about, at which a GPU reads gradients: timing a GPU would mean waiting for it
# Reads a gradient without the strategy's patch, which would sum gradients over the workers first.
GRAD = plain_grad
MEMORY = 0.97  # weight of the old value in the running estimate, per measured step


@dataclass(slots=True)
class StepNorms:
    """The norms of one step, on their way to the host."""

    step: int
    small: int
    large: int
    of_small: LossTicket
    of_large: LossTicket
    left_over: LossTicket | None  # of gradients from before the step: the step counts only if they are zero


@dataclass(slots=True)
class Backwards:
    """The backwards since the last optimizer step."""

    measuring: bool = False
    rows: list[int] = field(default_factory=list)  # samples of each backward
    own: int = 0  # this worker's samples
    sums: int = 0  # how often gradients were summed over the workers
    sent: list[Tensor] = field(default_factory=list)  # squared norms of the gradients sent
    small: Tensor | None = None
    large: Tensor | None = None
    left_over: Tensor | None = None
    whole: bool = True  # all gradients are included
    cost: float = 0.0


class NoiseMeter:
    """The meter of one worker. On a GPU no method waits for the device. `strategy` is for several workers only."""

    def __init__(self, stage: Stage, folder: Path, strategy: Strategy) -> None:
        self.stage, self.group = stage, stage.group
        self.every = 1
        self._writer = StepWriter(folder / f"noise.rank{self.group.rank}.jsonl")
        self._values = LossReader()
        self._waiting: deque[StepNorms] = deque()
        self._now = Backwards()
        self._primary: Any = None
        self._usual = 1  # backwards in the previous step
        self._steps = self._lines = 0
        self._delivered = self._rows = 0
        self._costs: list[tuple[float, float]] = []  # seconds of measured steps: for measuring, and in total
        self._since = time.perf_counter()
        self._means = (0.0, 0.0)
        stage.subscribe(self)
        if self.group.world > 1:
            strategy.watch_gradients(self)

    # -- seams -----------------------------------------------------------------------------------------------------

    def on_batch(self, batch: Any) -> None:
        self._delivered = self.stage.views.batch_size(batch)

    def before_forward(self, module: nn.Module) -> None:
        if not (torch.is_grad_enabled() and module.training):
            self._delivered = 0
        elif not self._rows:
            self._rows, self._delivered = self._delivered or self.stage.views.rows, 0

    def before_backward(self, losses: list[Tensor]) -> None:
        now = self._now
        if now.rows or self.stage.aside or self._primary is None:
            return
        now.measuring = self._steps >= WARM_UP and self._steps % self.every == 0
        if now.measuring:
            now.left_over = self._left_over()

    def after_backward(self, losses: list[Tensor]) -> None:
        now, views = self._now, self.stage.views
        cut = views.split if views.batch_is_cut else Split.of(self.group, self._rows)
        now.rows.append(cut.batch if cut is not None else self._rows)
        now.own += cut.mine if cut is not None else self._rows
        self._rows = 0
        if now.measuring and self.group.world == 1 and self._usual > 1 and len(now.rows) in (1, self._usual):
            began = time.perf_counter()
            square = self._square(self._grads())
            if len(now.rows) == 1:
                now.small = square
            else:
                now.large = square
            now.cost += time.perf_counter() - began

    def after_step(self, optimizer: Any) -> None:
        now, self._now = self._now, Backwards()
        if self._primary is None:
            self._primary = optimizer
        if optimizer is not self._primary:
            return
        self._steps += 1
        at = time.perf_counter()
        if now.measuring and self._is_sound(now):
            self._take(now)
        if now.measuring:
            self._weigh(now.cost, at - self._since)
        self._usual, self._since = len(now.rows), at

    def close(self) -> None:
        """Called when the script has ended, also after an error."""
        self._write(wait=True)
        self._writer.close()
        if not self._lines and self._steps > WARM_UP and not self.stage.aside:
            self.stage.pulse.notice(
                "The noise scale was not measured: measuring needs two workers (-n 2), or several backwards of equal "
                "batches before each step, with gradients that start at zero."
            )

    # -- called by the strategy, with several workers -----------------------------------------------------------------

    def sending(self, flat: Tensor) -> None:
        """Sees this worker's own gradients, divided by the number of workers."""
        if self._now.measuring:
            began = time.perf_counter()
            self._now.sent.append(self._square([flat]))
            self._now.cost += time.perf_counter() - began

    def arrived(self, flats: list[Tensor], whole: bool) -> None:
        """Sees the same gradients, summed over the workers; `whole` if no gradient was sent separately."""
        now = self._now
        now.sums += 1
        if now.measuring and now.sent:
            began = time.perf_counter()
            now.small, now.large, now.whole = torch.stack(now.sent).sum(), self._square(flats), whole
            now.cost += time.perf_counter() - began

    # -- measuring -------------------------------------------------------------------------------------------------

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._primary.param_groups for parameter in group["params"]]

    def _grads(self) -> list[Tensor]:
        return [grad for parameter in self._parameters() if (grad := GRAD.__get__(parameter)) is not None]

    def _left_over(self) -> Tensor | None:
        """The sum of absolute gradients before the first backward; None without gradients. Reads the smallest tensor
        only: a script clears all gradients or none."""
        grads = [grad for grad in self._grads() if grad.layout is torch.strided]
        return min(grads, key=Tensor.numel).detach().abs().sum().float() if grads else None

    @torch.no_grad()
    def _square(self, tensors: list[Tensor]) -> Tensor:
        if self.group.world == 1 and any(tensor.layout is not torch.strided for tensor in tensors):
            self._now.whole = False
            return torch.zeros((), device="cpu")
        if tensors and tensors[0].is_cuda:
            self._now.cost += sum(tensor.nbytes for tensor in tensors) / BANDWIDTH
        wide = [tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor for tensor in tensors]
        norms = torch._foreach_norm([torch.view_as_real(t) if t.is_complex() else t for t in wide])
        return torch.stack([norm.double().square().to(wide[0].device) for norm in norms]).sum()

    def _is_sound(self, now: Backwards) -> bool:
        """Whether both norms come from suitable gradients."""
        if now.small is None or now.large is None or not now.whole:
            return False
        if self.group.world == 1:
            return len(now.rows) == self._usual and len({*now.rows}) == 1
        # Hooks of the script see global gradients within backward: then this worker's own were never available.
        return now.sums == 1 and not any(parameter._backward_hooks for parameter in self._parameters())

    def _take(self, now: Backwards) -> None:
        assert now.small is not None
        assert now.large is not None
        large = sum(now.rows)
        small = now.own if self.group.world > 1 else now.rows[0]
        if not 0 < small < large:
            return
        # Both are parts of the whole batch's mean: rescale the smaller one to the mean over its own samples.
        of_small = self._values.take(now.small.float() * (large / small) ** 2)
        of_large = self._values.take(now.large.float())
        left_over = None if now.left_over is None else self._values.take(now.left_over)
        assert of_small is not None
        assert of_large is not None
        self._waiting.append(StepNorms(self._steps, small, large, of_small, of_large, left_over))
        self._write()

    def _weigh(self, cost: float, step: float) -> None:
        """After `TRIED` measured steps, sets how often to measure."""
        if len(self._costs) < TRIED:
            self._costs.append((cost, step))
            if len(self._costs) == TRIED:
                ours, all_of_it = (sorted(column)[TRIED // 2] for column in zip(*self._costs, strict=True))
                self.every = min(100, max(1, math.ceil(ours / max(1e-9, SHARE * all_of_it))))

    def _write(self, *, wait: bool = False) -> None:
        self._values.send()
        while self._waiting:
            line = self._waiting[0]
            tickets = [ticket for ticket in (line.of_small, line.of_large, line.left_over) if ticket is not None]
            if not all(ticket.is_here(wait=wait) for ticket in tickets):
                break
            self._waiting.popleft()
            of_small, of_large = line.of_small.value, line.of_large.value
            left_over = line.left_over is not None and line.left_over.value != 0.0
            if left_over or of_small is None or of_large is None or not math.isfinite(of_small + of_large):
                continue
            noise = Noise(step=line.step, small=line.small, large=line.large, of_small=of_small, of_large=of_large)
            self._writer.append(noise)
            self._lines += 1
            self._show(noise)

    def _show(self, noise: Noise) -> None:
        keep = min(MEMORY, 1.0 - 1.0 / (self._lines + 1))
        pairs = zip(self._means, estimates(noise), strict=True)
        self._means = spread, signal = tuple(keep * old + (1.0 - keep) * new for old, new in pairs)  # type: ignore[assignment]
        self.stage.pulse.noise = spread / signal if spread > 0 and signal > 0 else None
