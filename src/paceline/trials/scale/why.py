"""Explains lost efficiency: splits the time of a step into work, communication, imbalance and input.

Only arithmetic over recorded steps. In each step, the worker that enters the collectives last waits the least, and only
for the bytes to move: this time counts as communication for every worker. Longer waits of other workers count as
imbalance. Imbalance is derived from waiting times and not from work, because a delay after a step's collectives makes
the peers wait in the next step.

With perfect scaling, a part takes its time at the base times the worker's share of the base's samples: 1/N if the batch
is kept, 1 if the batch grows. Time beyond that is lost. So defined, the losses add up to 1 - efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from paceline.record.schema import Step
from paceline.units import count, seconds

COMPUTE = ("forward", "backward", "optimizer", "other")
CAUSES = ("compute", "communication", "imbalance", "input")
PARTS = (*COMPUTE, "communication", "imbalance", "input")
VISIBLE = 0.005  # smallest loss of efficiency that is reported: half a point
STANDS_OUT = 0.75  # a worker that causes at least this fraction of the waiting is named


class Parts(msgspec.Struct, kw_only=True):
    """Mean seconds of a worker in a typical step; the parts (`PARTS`) add up to `total`. `waited_for` holds, for each
    worker, the seconds per step that its peers waited because this worker came last."""

    samples: float  # of the global batch
    total: float
    forward: float
    backward: float
    optimizer: float
    other: float
    communication: float
    imbalance: float
    input: float
    waited_for: list[float]


class ScaleSetting(msgspec.Struct, kw_only=True):
    """The settings that advice depends on. `threads`: CPU threads per worker, 0 on a GPU. `shared_cores`: some workers
    share a core."""

    workers: int
    threads: int = 0
    shared_cores: bool = False
    mods: tuple[str, ...] = ()


class Why(msgspec.Struct, kw_only=True):
    """The lost efficiency of one number of workers. `seconds`: of a step by cause, and `total`. `lost`: efficiency lost
    by cause (0.06 is six points; negative is gained), which adds up to 1 - efficiency. `compute_lost`: the compute part
    of `lost`, by phase. `waited_for`: the rank that the other workers mostly wait for, None if no rank stands out.
    `lateness`: seconds per step by which that rank comes later."""

    seconds: dict[str, float]
    lost: dict[str, float]
    compute_lost: dict[str, float]
    waited_for: int | None = None
    lateness: float = 0.0
    sentence: str = ""  # empty for the base


def take_apart(by_rank: Sequence[Sequence[Step]]) -> Parts | None:
    """The parts of a run's typical steps: the middle half by duration, of the steps that every worker split into parts.
    Leaves out steps with evaluation if there are steps without. None if no step can be used."""
    numbered = [{step.step: step for step in steps} for steps in by_rank]
    common = sorted(set.intersection(*(set(steps) for steps in numbered))) if numbered else []
    together = [[steps[number] for steps in numbered] for number in common]
    usable = [ranks for ranks in together if all(step.split for step in ranks) and _time(ranks) > 0]
    training = [ranks for ranks in usable if not any(step.evaluation for step in ranks)] or usable
    typical = sorted(training, key=_time)[len(training) // 4 : len(training) - len(training) // 4]
    return _mean(typical) if typical else None


def _time(ranks: Sequence[Step]) -> float:
    return fmean(step.total for step in ranks)


def _mean(typical: Sequence[Sequence[Step]]) -> Parts:
    def mean(part: str) -> float:
        return fmean(getattr(step, part) for ranks in typical for step in ranks)

    waited_for = [0.0] * len(typical[0])
    moving = []
    for ranks in typical:
        waits = [step.communication for step in ranks]
        moving.append(min(waits))
        waited_for[waits.index(min(waits))] += (fmean(waits) - min(waits)) / len(typical)
    total, communication = mean("total"), fmean(moving)
    parts = {part: mean(part) for part in ("forward", "backward", "optimizer")}
    waiting = {
        "communication": communication,
        "imbalance": mean("communication") - communication,
        "input": mean("data"),
    }
    # The remainder, so that the parts add up even if a later version records more parts.
    other = total - sum(parts.values()) - sum(waiting.values())
    samples = median(ranks[0].samples for ranks in typical)
    return Parts(samples=samples, total=total, **parts, other=other, **waiting, waited_for=waited_for)


def join(rounds: Sequence[Parts], samples_per_s: float) -> Parts:
    """The parts of a point: the mean shares of its rounds, times the duration of a step at the point's throughput."""
    samples = median(parts.samples for parts in rounds)
    total = samples / samples_per_s

    def share(part: str) -> float:
        return total * fmean(getattr(parts, part) / parts.total for parts in rounds)

    return Parts(
        samples=samples,
        total=total,
        **{part: share(part) for part in PARTS},
        waited_for=[
            total * fmean(each) for each in zip(*([s / p.total for s in p.waited_for] for p in rounds), strict=True)
        ],
    )


def explain(parts: Parts, base: Parts, setting: ScaleSetting, base_setting: ScaleSetting, *, weak: bool = False) -> Why:
    """Explains the efficiency lost between `base` and `parts`, both from `join`. `weak` changes only the advice."""
    # A worker's samples relative to the base: with perfect scaling, times shrink to this share.
    ideal = (parts.samples / setting.workers) / (base.samples / base_setting.workers)
    by_part = {part: (getattr(parts, part) - getattr(base, part) * ideal) / parts.total for part in PARTS}
    compute_lost = {part: by_part[part] for part in COMPUTE}
    lost = {"compute": sum(compute_lost.values()), **{cause: by_part[cause] for cause in CAUSES[1:]}}
    seconds = {
        "total": parts.total,
        "compute": sum(getattr(parts, part) for part in COMPUTE),
        **{cause: getattr(parts, cause) for cause in CAUSES[1:]},
    }
    why = Why(seconds=seconds, lost=lost, compute_lost=compute_lost)
    most, waiting = max(parts.waited_for), setting.workers - 1
    if waiting and most > STANDS_OUT * sum(parts.waited_for):
        why.waited_for, why.lateness = parts.waited_for.index(most), most * setting.workers / waiting
    if setting.workers != base_setting.workers:
        why.sentence = _sentence(why, setting, base_setting, weak=weak)
    return why


def _sentence(why: Why, setting: ScaleSetting, base: ScaleSetting, *, weak: bool) -> str:
    # A late worker also costs its own extra time, which the mean over workers shows as compute or input.
    late = {"imbalance": max(0.0, (why.lateness - why.seconds["imbalance"]) / why.seconds["total"])}
    by_size = sorted(why.lost, key=lambda cause: -why.lost[cause] - late.get(cause, 0.0))
    losses = [cause for cause in by_size if why.lost[cause] >= VISIBLE]
    gains = [cause for cause in reversed(by_size) if why.lost[cause] <= -VISIBLE]
    text = f"{setting.workers} workers reach {(1 - sum(why.lost.values())) * 100:.0f} %"
    if not losses and not gains:
        return f"{text}: nothing is lost."
    told = []
    if losses:
        points = [f"{why.lost[cause] * 100:.1f} {'points go ' * (cause == losses[0])}to {cause}" for cause in losses]
        told.append(_listed(points))
    if gains:
        points = [f"{-why.lost[cause] * 100:.1f} {'points ' * (cause == gains[0])}in {cause}" for cause in gains]
        told.append(f"they gain {_listed(points)}")
    text = f"{text}: {'; '.join(told)}."
    if losses and sum(why.lost.values()) > 0:  # more than perfect needs no advice
        text += f" The largest cause is {losses[0]}: {_advice(losses[0], why, setting, base, weak=weak)}."
    return text


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _advice(cause: str, why: Why, setting: ScaleSetting, base: ScaleSetting, *, weak: bool) -> str:
    if cause == "communication":
        return (
            "transfers that do not overlap with compute; try a larger batch, and measure the links with "
            "`paceline bandwidth`"
        )
    if cause == "imbalance":
        if why.waited_for is None:
            return "a different worker is last in each step; try an idle machine, or batches with more even work"
        return (
            f"rank {why.waited_for} is {seconds(why.lateness)} per step later than the other workers; check what rank "
            f"{why.waited_for} does, and which other processes run on its cores"
        )
    if cause == "input":
        on = {mod.partition("=")[0] for mod in setting.mods}
        untried = [f"--mod {mod}" for mod in ("resident", "loader=2") if mod.partition("=")[0] not in on]
        return f"the loader is too slow; try {' or '.join(untried) or 'a dataset with less work per sample'}"
    if 0 < setting.threads < base.threads:
        return (
            f"each worker has {setting.threads} thread{'s' * (setting.threads > 1)} instead of {base.threads} with "
            f"{count(base.workers, 'worker')}; use more cores or GPUs rather than more workers"
        )
    if setting.shared_cores:
        return "there are more workers than cores; try fewer workers"
    phase = max(why.compute_lost, key=lambda phase: why.compute_lost[phase])
    if weak:
        return (
            f"most in {phase}, although each worker has as many samples as with {count(base.workers, 'worker')}; try "
            "fewer --threads, or check what the workers share: cores, caches, memory"
        )
    if phase == "optimizer":
        return "every worker updates all weights; try --mod fused_optimizer or a larger batch"
    if phase == "other":
        return "every worker repeats the script's work outside the model; try less of that work per step"
    return (
        f"most in {phase}: work that does not shrink with the samples, or shared cores and memory; try a larger batch"
    )
