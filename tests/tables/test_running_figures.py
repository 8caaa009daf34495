"""The figures of a run in progress: those of the steps so far, in bounded time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.record import Step, StepWriter
from paceline.tables import running
from paceline.tables.figures import columns_of, figures
from paceline.tables.running import RunningFigures


def step(number: int, total: float = 0.1) -> Step:
    parts = {"data": 0.0, "forward": total, "backward": 0.0, "communication": 0.0, "optimizer": 0.0}
    return Step(step=number, at=float(number), samples=8, total=total, **parts)


def test_new_lines_are_read_and_a_torn_one_waits(tmp_path):
    writer = StepWriter(tmp_path / "steps.rank0.jsonl")
    told = RunningFigures(tmp_path)
    told.follow([0])
    assert told.figures(now=True).steps == 0
    for number in range(1, 21):
        writer.append(step(number, 0.1 + 0.001 * number))
    made = [step(number, 0.1 + 0.001 * number) for number in range(1, 21)]
    assert told.figures(now=True) == figures({0: columns_of(made)})
    with open(tmp_path / "steps.rank0.jsonl", "ab") as file:
        file.write(b'{"step": 21')
    assert told.figures(now=True).steps == 20
    writer.close()


def test_a_run_that_was_started_again_is_read_from_its_start(tmp_path):
    told = RunningFigures(tmp_path)
    told.follow([0])
    for count in (20, 5):
        (tmp_path / "steps.rank0.jsonl").unlink(missing_ok=True)
        writer = StepWriter(tmp_path / "steps.rank0.jsonl")
        for number in range(1, count + 1):
            writer.append(step(number))
        writer.close()
        assert told.figures(now=True).steps == count


def test_without_files_the_reported_steps_count():
    told = RunningFigures()
    for number in range(1, 30):
        told.report({0: step(number), 1: step(number)})
    assert told.figures(now=True).samples_per_s == pytest.approx(80)


def test_they_are_not_computed_at_every_look(monkeypatch):
    told, now, computed = RunningFigures(), [0.0], []

    def slow(by_rank):
        computed.append(now[0])
        now[0] += 1.0
        return figures(by_rank)

    monkeypatch.setattr(running, "figures", slow)
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for number in range(1, 60):
        now[0] += 1.0
        told.report({0: step(number)})
        told.figures()
    assert computed == [1.0, 22.0, 43.0]


def test_many_workers_are_looked_at_over_fewer_steps(monkeypatch):
    monkeypatch.setattr(running, "MOST_ROWS", 1000)
    monkeypatch.setattr(running, "FEWEST", 10)
    told = RunningFigures()
    for number in range(1, 61):
        told.report({rank: step(number) for rank in range(50)})
    assert told.figures(now=True).steps == 20
