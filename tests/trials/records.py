"""Made-up records: a run whose every number is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.record import Outcome, Run, Step, StepWriter, WorkerInfo, write_run


def step(
    number: int,
    *,
    own: float = 0.08,
    communication: float = 0.02,
    samples: int = 64,
    loss: float | None = 1.0,
) -> Step:
    """A step whose own work is half forward, half backward."""
    return Step(
        step=number,
        at=1000.0 + number,
        samples=samples,
        total=own + communication,
        data=0.0,
        forward=own / 2,
        backward=own / 2,
        communication=communication,
        optimizer=0.0,
        loss=loss,
    )


def write_record(folder: Path, by_rank: Sequence[Sequence[Step]], *, exit_code: int = 0, message: str = "") -> Outcome:
    """A record of a run that ended so."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, steps in enumerate(by_rank):
        writer = StepWriter(folder / f"steps.rank{rank}.jsonl")
        for one in steps:
            writer.append(one)
        writer.close()
    outcome = Outcome(exit_code=exit_code, seconds=12.5, view="batch", message=message, steps=len(by_rank[0]))
    workers = [WorkerInfo(rank=r, host="here", pid=1, cores=[r], threads=1) for r in range(len(by_rank))]
    write_run(
        folder,
        Run(
            paceline="0",
            verb="run",
            script="train.py",
            arguments=[],
            settings={},
            workers=workers,
            outcome=outcome,
        ),
    )
    return outcome
