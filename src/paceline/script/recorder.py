"""Writes one line per step to the record, and stops the script after the requested number of steps.

A step ends with the step of the script's first optimizer; in a script that has none, with each backward. An optimizer
that the script makes later takes over with its first step (the next fold, a resumed trainer), and so does one that
steps twice while the present one rests; but one that steps beside several of these is the outer one, and stays.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from typing import Any

import torch

from paceline.comm.stopwatch import UNSPLIT, Lap
from paceline.record.phases import CHECK, EVALUATION, PHASES
from paceline.record.schema import Step
from paceline.record.writer import StepWriter
from paceline.script import memory
from paceline.script.losses import LossReader, LossTicket
from paceline.script.output.tracking import Tracking
from paceline.script.seams.stage import Stage, call_site
from paceline.script.stop_rule import Enough


class EnoughSteps(SystemExit):
    """The requested number of steps is done: the script ends here, with exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


class Recorder:
    """Listens at the seams of one worker. On a GPU no method waits for the device."""

    def __init__(self, stage: Stage, writer: StepWriter) -> None:
        self.stage, self.watch, self.writer = stage, stage.watch, writer
        self.steps = 0
        self.tracking: Tracking | None = None
        self.traced = False  # the step under way is under the profiler
        self._primary: Any = None  # the optimizer whose step ends a step
        self._since = 0  # steps before it took over
        self._reign = 0  # how many took over
        self._is_settled = False
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # optimizer → steps before it
        # Optimizer → where it stepped beside the primary one: in whose reign, and after how many steps.
        self._beside: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._losses = LossReader()
        self._loss: LossTicket | None = None  # of the last backward
        self._laps: deque[tuple[Lap, Any]] = deque()  # steps whose losses are not on the host yet
        self._delivered = 0  # samples handed out by a loader and not yet trained on
        self._samples = 0
        self._rows = 0  # of the first model call of the step: counts the samples if there is no loader
        self._sites: dict[int, int] = {}  # backwards of this step, by call site
        self._written = 0.0
        self._memory, self._memory_read = 0, 0.0  # peak bytes, and when they were last read
        self._enough = Enough(stage.run.enough) if stage.run.enough else None
        stage.subscribe(self)

    def on_batch(self, batch: Any) -> None:
        self._delivered = self.stage.views.batch_size(batch)

    def before_forward(self, module: torch.nn.Module) -> None:
        if not (torch.is_grad_enabled() and module.training):
            self._delivered = 0
            return
        self._samples += self._delivered
        self._delivered = 0
        self._rows = self._rows or self.stage.views.rows

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        if not self._samples:
            site = call_site()
            self._sites[site] = self._sites.get(site, 0) + 1
        self._loss = self._losses.take(losses[0]) or self._loss
        if not self.stage.has_optimizer:
            self._end_step()

    def on_optimizer(self, optimizer: Any) -> None:
        self._made[optimizer] = self.steps

    def after_step(self, optimizer: Any) -> None:
        if self._primary is None or (optimizer is not self._primary and self._takes_over(optimizer)):
            self._primary, self._since, self._reign = optimizer, self.steps, self._reign + 1
        if optimizer is self._primary:
            self._end_step()

    def _takes_over(self, optimizer: Any) -> bool:
        if self._is_settled:
            return False
        before, now = self._beside.get(optimizer), (self._reign, self.steps)
        self._beside[optimizer] = now
        self._is_settled = before is not None and before[0] != now[0]
        return self._is_settled or before == now or self._made.get(optimizer, 0) > self._since

    def on_end(self) -> None:
        self.write(wait=True)
        self.writer.close()
        self.watch.lap(None)
        rest = [seconds for seconds, _ in self.watch.laps(wait=True)]
        self.stage.pulse.evaluated_after += sum(seconds.get(EVALUATION, 0.0) for seconds in rest)

    def _end_step(self) -> None:
        if self.watch.stands:  # the script captures its step as a CUDA graph: nothing is computed yet
            return
        self.steps += 1
        self.stage.pulse.step = self.steps
        samples = self._samples or self._rows * next(iter(self._sites.values()), 1)
        self.watch.lap((self.steps, time.time(), samples, self._loss, self.traced))
        self._samples = self._rows = 0
        if self._sites:
            self._sites.clear()
        now = time.perf_counter()
        if now - self._written > (FLUSH if self.tracking is None else TRACKED):
            self._written = now
            self.write()
        if self.steps == self.stage.run.steps or self._has_enough():
            raise EnoughSteps

    def _has_enough(self) -> bool:
        if self._enough is None or not self._enough.is_time_to_look(self.steps):
            return False
        self.write()
        return self._enough.is_reached(self.stage.group)

    def write(self, *, wait: bool = False) -> None:
        """Writes the steps whose times and losses are on the host; with `wait`, waits for all steps."""
        self._losses.send()
        self._laps.extend(self.watch.laps(wait=wait))
        if self._laps:
            self._read_memory(wait)
        done: list[Step] = []
        while self._laps:
            seconds, (number, at, samples, loss, traced) = self._laps[0]
            if loss is not None and not loss.is_here(wait=wait):
                break
            self._laps.popleft()
            check = seconds.pop(CHECK, 0.0)
            step = Step(
                step=number,
                at=at,
                samples=samples,
                total=sum(seconds.values()),
                check=check,
                loss=None if loss is None else loss.value,
                finite=loss is None or loss.value is None or math.isfinite(loss.value),
                # A script that distributes itself is called past the seams of its model.
                split=UNSPLIT not in seconds and self.stage.run.launch_as is None,
                traced=traced,
                memory=self._memory,
                noise=self.stage.pulse.noise,
                **{phase: seconds.get(phase, 0.0) for phase in PHASES},
            )
            done.append(step)
            if self._enough is not None:
                self._enough.add(step.total - step.evaluation)
        if done:
            self.writer.append(*done)
            if self.tracking is not None:
                self.tracking.add(done)
            self.stage.pulse.latest = done[-1]

    def _read_memory(self, wait: bool) -> None:
        now = time.perf_counter()
        if wait or not self._memory or now - self._memory_read > WEIGH:
            self._memory, self._memory_read = memory.most_taken(), now


TRACKED = 0.02  # seconds between writes if the script's tracker gets the steps, too: its next row may come at once
FLUSH = 0.2  # seconds between writes: steps shorter than this are written several at a time
WEIGH = 1.0  # seconds between reads of the peak memory, which are slow on a GPU
