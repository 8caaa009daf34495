"""A `launch` without workers: keeps what it was asked, plays its part, and leaves the record of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.launch import Event
from paceline.record import Outcome, Run, Step, StepWriter, WorkerInfo, write_run
from paceline.settings import RunSettings


class FakeZygote:
    """Knows whether it was closed."""

    started: list[FakeZygote]

    def __init__(self) -> None:
        self.closed = False

    @classmethod
    def start(cls) -> FakeZygote:
        cls.started.append(cls())
        return cls.started[-1]

    def close(self) -> None:
        self.closed = True


class FakeLaunch:
    """Writes the record of a run of `steps` steps and tells `events` on the way."""

    def __init__(self) -> None:
        self.runs: list[RunSettings] = []
        self.records: list[Path] = []
        self.steps = 12
        self.events: list[Event] = []
        self.outcome = Outcome(exit_code=0, seconds=3.0, view="batch")
        self.raises: BaseException | None = None
        self.speedups: dict[int, float] = {}  # of numbers of workers; 1.0 where nothing is told

    def __call__(
        self,
        run: RunSettings,
        *,
        zygote: object,
        record: Path,
        on_event: Callable[[Event], None],
        verb: str = "run",
        oversubscribe: bool = False,
        limit: float | None = None,
    ) -> Outcome:
        self.runs.append(run)
        self.records.append(record)
        if self.raises:
            raise self.raises
        record.mkdir(parents=True, exist_ok=True)
        for event in self.events:
            on_event(event)
        for rank in range(run.workers):
            writer = StepWriter(record / f"steps.rank{rank}.jsonl")
            for number in range(1, self.steps + 1):
                step = one_step(number, waits=0.01 * (rank == 0))
                for part in ("total", "data", "forward", "backward", "communication", "optimizer"):
                    setattr(step, part, getattr(step, part) / self.speedups.get(run.workers, 1.0))
                writer.append(step)
            writer.close()
        workers = [WorkerInfo(rank=r, host="here", pid=1, cores=[], threads=1) for r in range(run.workers)]
        write_run(
            record,
            Run(
                paceline="0",
                verb=verb,
                script=run.script,
                arguments=[],
                settings={},
                workers=workers,
                outcome=self.outcome,
            ),
        )
        return self.outcome


def one_step(number: int, *, waits: float = 0.0) -> Step:
    return Step(
        step=number,
        at=1000.0 + number * 0.1,
        samples=64,
        total=0.1,
        data=0.01,
        forward=0.03,
        backward=0.05 - waits,
        communication=waits,
        optimizer=0.01,
        loss=1.0 / number,
    )
