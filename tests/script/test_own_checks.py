"""Paceline's own checks take time inside steps: time lines show it, and no step, rate or finding contains it.

Clocks stand still until a test lets time pass, so every number is exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn

from paceline.advise.evidence import Evidence
from paceline.advise.rules import varying_steps
from paceline.comm import stopwatch
from paceline.comm.group import Group
from paceline.record import Run, Step, WorkerInfo, read_steps, write_run
from paceline.record.phases import CHECK, PHASES
from paceline.record.writer import StepWriter
from paceline.script.proof.proof import Proof
from paceline.script.recorder import Recorder
from paceline.script.slicing import sliced
from paceline.tables.figures import columns_of, figures

PROOF, COMPARISON = 1000.0, 100.0  # seconds
Spans = list[tuple[str, float, float]]


class Clock:
    """Keeps its time where a trial, which undoes what a model changes, does not put it back."""

    def __init__(self) -> None:
        self._now = array("d", [0.0])

    def perf_counter(self) -> float:
        return self._now[0]

    def wait(self, seconds: float) -> None:
        self._now[0] += seconds


clock = Clock()


class Model(nn.Module):
    """Each call takes a second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.ways: list[str] = []  # no value by which Paceline would tell two calls apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        clock.wait(1.0)
        y = self.layer(x)
        return y * 2.0 if self.ways else y


def train(steps: int, before: Callable[[int, Model], None] = lambda number, model: None) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, steps + 1):
        before(number, model)
        optimizer.zero_grad()
        model(torch.ones(8, 2)).mean().backward()
        optimizer.step()


@contextmanager
def slow_checks(group: Group) -> Iterator[None]:
    """A proof waits for another worker, and a comparison takes some time of its own."""
    prove, keep_state = Proof.__call__, sliced._state

    def proven(*args: Any, **kwargs: Any) -> Any:
        with group.waiting("a slow worker"):
            clock.wait(PROOF)
        return prove(*args, **kwargs)

    def kept(*args: Any) -> Any:
        clock.wait(COMPARISON)
        return keep_state(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopwatch, "time", clock)
        patch.setattr(Proof, "__call__", proven)
        patch.setattr(sliced, "_state", kept)
        yield


def recorded(group: Group, folder: Path, script: Callable[[Any], None]) -> tuple[list[Step], Spans]:
    """The steps of a script, and the spans of its time line."""
    spans: Spans = []
    with slow_checks(group), staged(group) as stage:
        stage.watch.on_span = lambda *span: spans.append(span)
        Recorder(stage, StepWriter(folder / f"steps.rank{group.rank}.jsonl"))
        script(stage)
        stage.end()
    return read_steps(folder, group.rank), spans


def forty_steps(stage: Any) -> None:
    train(40)


def test_a_step_leaves_checks_out_and_the_time_line_shows_them(pool: Any, tmp_path: Path) -> None:
    for steps, spans in pool(2).run(recorded, tmp_path, forty_steps):
        compared = [step.step for step in steps if step.check >= COMPARISON]
        assert compared == [1, 2, 4, 8, 16, 32]
        assert steps[0].check >= PROOF + COMPARISON
        assert [step.total for step in steps] == [1.0] * 40
        assert [step.communication for step in steps] == [0.0] * 40, "a wait inside a check is part of the check"
        assert all(sum(getattr(step, phase) for phase in PHASES) == step.total for step in steps)
        shown = sum(end - start for name, start, end in spans if name == CHECK)
        assert shown == sum(step.check for step in steps)
        told = figures({0: columns_of(steps)})
        assert (told.step_time, told.samples_per_s) == (1.0, 8.0)


def test_checks_are_no_finding(pool: Any, tmp_path: Path) -> None:
    pool(2).run(recorded, tmp_path, forty_steps)
    workers = [WorkerInfo(rank=rank, host="here", pid=1, cores=[rank], threads=1) for rank in range(2)]
    run = Run(paceline="0", verb="run", script="train.py", arguments=[], settings={}, workers=workers)
    write_run(tmp_path, run)
    evidence = Evidence.of_record(tmp_path)
    assert evidence.settled.height >= 2 * varying_steps.FEWEST
    assert varying_steps.find(evidence) is None


def another_way(stage: Any) -> None:
    """The second call computes otherwise than the proof, and is made again."""
    train(3, lambda number, model: model.ways.append("") if number == 2 else None)


def test_a_call_that_is_computed_anew_counts_once(pool: Any, tmp_path: Path) -> None:
    for steps, _ in pool(2).run(recorded, tmp_path, another_way):
        assert [step.total for step in steps] == [1.0] * 3
        assert steps[1].check > COMPARISON + 1.0, "the comparison, and the call made again"


def traced_in_between(stage: Any) -> None:
    """Steps 3 to 9 are traced."""

    def before(number: int, model: Model) -> None:
        stage.watch.traced = 3 <= number <= 9

    train(12, before)


def test_a_comparison_that_is_due_in_a_trace_is_made_after_it(pool: Any, tmp_path: Path) -> None:
    for steps, _ in pool(2).run(recorded, tmp_path, traced_in_between):
        assert [step.step for step in steps if step.check >= COMPARISON] == [1, 2, 10]
