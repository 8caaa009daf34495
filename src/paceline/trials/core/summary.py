"""The summary of one run, read from its record: samples/s, where a step's time went, the slowest worker.

`run` prints a summary at its end; `scale` makes one of each trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from paceline.record import read_run, read_steps
from paceline.record.phases import PHASES
from paceline.record.schema import Step
from paceline.record.settling import settle


class Slowest(msgspec.Struct, kw_only=True):
    """The worker that the other workers waited for. `behind`: seconds per step more than the median of the other
    workers. Only time before a collective counts, because a collective makes all workers look equally slow."""

    rank: int
    behind: float


class Summary(msgspec.Struct, kw_only=True):
    """One run in numbers. `step` holds the mean seconds of each part of a step, and their `total`. `step` and
    `samples_per_s` leave out the first `warm_up` steps; `steps` and `samples` count all."""

    workers: int
    view: str
    strategy: str
    mods: list[str]
    steps: int
    warm_up: int
    samples: int
    seconds: float  # from the launch to the end of the last worker
    samples_per_s: float
    median_samples_per_s: float
    step: dict[str, float]
    slowest: Slowest | None
    first_loss: float | None
    last_loss: float | None
    exit_code: int


def warm_up(steps: Sequence[Step]) -> int:
    """The number of warm-up steps to leave out: until step times are steady, or a third of the steps if they never are.
    Step 1 includes the set-up, allocates memory, picks kernels and proves the slicing; the next steps fill buckets in a
    new order; compilation takes any number of steps."""
    found = settle([step.total - step.evaluation for step in steps])
    return len(steps) // 3 if found is None else found


def rates(steps: Sequence[Step]) -> list[float]:
    """Samples/s of each step."""
    return [step.samples / step.total for step in steps if step.total > 0]


def busy(steps: Sequence[Step]) -> float:
    """Seconds per step that a worker spent on its own work, during which its peers wait.

    The median over steps, so that one garbage collection or page fault does not mark a worker as slow.
    """
    return median(step.total - step.communication for step in split(steps))


def split(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps whose time was split into parts; all steps if none was."""
    return [step for step in steps if step.split] or steps


def slowest(by_rank: Sequence[Sequence[Step]]) -> Slowest | None:
    """The worker with the longest own work per step. None for a single worker."""
    own = {rank: busy(steps) for rank, steps in enumerate(by_rank) if steps}
    if len(own) < 2:
        return None
    rank = max(own, key=lambda r: own[r])
    others = median(seconds for r, seconds in own.items() if r != rank)
    return Slowest(rank=rank, behind=own[rank] - others)


def mean_step(by_rank: Sequence[Sequence[Step]]) -> dict[str, float]:
    """Mean seconds of each part of a step, over steps and workers. The parts add up to `total`."""
    everything = split([step for steps in by_rank for step in steps])
    return {
        part: fmean(getattr(step, part) for step in everything) if everything else 0.0 for part in ("total", *PHASES)
    }


def summarize(folder: Path) -> Summary:
    """Reads the record of a finished or killed run."""
    run = read_run(folder)
    by_rank = [read_steps(folder, worker.rank) for worker in run.workers]
    first = by_rank[0] if by_rank else []
    dropped = warm_up(first)
    steady = [steps[dropped:] for steps in by_rank]
    measured = steady[0] if steady else []
    total = sum(step.total for step in measured)
    losses = [step.loss for step in first if step.loss is not None]
    outcome = run.outcome
    return Summary(
        workers=len(run.workers),
        view=outcome.view if outcome else "",
        strategy=run.strategy,
        mods=run.mods,
        steps=len(first),
        warm_up=dropped,
        samples=sum(step.samples for step in first),
        seconds=outcome.seconds if outcome else 0.0,
        samples_per_s=sum(step.samples for step in measured) / total if total > 0 else 0.0,
        median_samples_per_s=median(rates(measured)) if measured else 0.0,
        step=mean_step(steady),
        slowest=slowest(steady),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        exit_code=outcome.exit_code if outcome else 1,
    )
