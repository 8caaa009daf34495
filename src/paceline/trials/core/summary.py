"""What one run's record says of its speed: how many samples a second, where a step's time went, who was
slowest.

Reads a record, knows nothing of how it is shown. `run` prints one of these; a trial of `scale` is one of
these.
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
    """The worker that the others waited for. `behind`: seconds a step more than the median of the others,
    counted before it enters a collective, since afterwards all look equally slow."""

    rank: int
    behind: float


class Summary(msgspec.Struct, kw_only=True):
    """One run in numbers. `step` holds the mean seconds of each part of a step, and `total`; it and
    `samples_per_s` leave the first steps out (`warm_up` many), `steps` and `samples` count all."""

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
    """How many first steps are left out of the measurement: until their times have settled; a third of them where they
    never do. Step 1 pays for the set-up before it, allocates, picks kernels and proves the slicing; the next ones fill
    buckets in a new order; with --view auto the view is chosen after the third; a compiler takes as long as it does."""
    found = settle([step.total - step.evaluation for step in steps])
    return len(steps) // 3 if found is None else found


def rates(steps: Sequence[Step]) -> list[float]:
    """Samples a second, step by step."""
    return [step.samples / step.total for step in steps if step.total > 0]


def busy(steps: Sequence[Step]) -> float:
    """Seconds a step that a worker spent on its own work, which is how long its peers had to wait for it.

    The median, so that one garbage collection or page fault does not name a worker.
    """
    return median(step.total - step.communication for step in split(steps))


def split(steps: Sequence[Step]) -> Sequence[Step]:
    """Those whose time was split into parts; all of them if none was."""
    return [step for step in steps if step.split] or steps


def slowest(by_rank: Sequence[Sequence[Step]]) -> Slowest | None:
    """The worker with most work of its own a step. None where there is nobody to compare it with."""
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
    """Reads the record of a run that has ended (or was killed: then what it left counts)."""
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
