"""Why efficiency falls: the time of a step split into what its workers did and what they waited for.

Pure arithmetic over the steps that workers recorded; knows nothing of how it is shown. In each step the worker that
came last to the collectives waited least in them, and only because bytes had to move: that much is communication, for
everybody. What the others waited longer is imbalance. It is taken from the waiting, not from the work, since a delay
after a step's collectives makes the peers wait in the next step.

Against the base, each part should take so much of its time as each worker has of its samples: 1/N with the batch kept,
all of it with a batch that grows. What it takes beyond that is lost. By this the losses add up to 1 - efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from paceline.record.schema import Step
from paceline.units import seconds

COMPUTE = ("forward", "backward", "optimizer", "other")
CAUSES = ("compute", "communication", "imbalance", "input")
PARTS = (*COMPUTE, "communication", "imbalance", "input")
VISIBLE = 0.005  # of efficiency: half a point is the least that is spoken of
STANDS_OUT = 0.75  # of the waiting is for one worker: it is the slow one


class Parts(msgspec.Struct, kw_only=True):
    """Mean seconds of a worker in a typical step; the parts (`PARTS`) add up to `total`. `waited_for` is, for each
    worker, the seconds a step that its peers waited because it came last."""

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
    """What advice depends on. `threads` is what the launcher gave each worker, 0 where it computes on a GPU;
    `shared_cores`: some have to share one."""

    workers: int
    threads: int = 0
    shared_cores: bool = False
    mods: tuple[str, ...] = ()


class Why(msgspec.Struct, kw_only=True):
    """One number of workers explained. `seconds` of a step by cause, and `total`; `lost` of the efficiency by cause
    (0.06 is six points; below zero is gained), which adds up to 1 - efficiency; `compute_lost` is the compute part of
    it by phase. `waited_for` is the worker that the others mostly wait for, None where none stands out; `lateness` how
    much later than the others it comes, seconds a step."""

    seconds: dict[str, float]
    lost: dict[str, float]
    compute_lost: dict[str, float]
    waited_for: int | None = None
    lateness: float = 0.0
    sentence: str = ""  # empty for the base


def take_apart(by_rank: Sequence[Sequence[Step]]) -> Parts | None:
    """The parts of a run's typical steps: the middle half by their time, of those that every worker has split. Steps
    with evaluation are left out where there are others. None where no step can be used."""
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
    # What is left, so that the parts add up whatever a later version records beside them.
    other = total - sum(parts.values()) - sum(waiting.values())
    samples = median(ranks[0].samples for ranks in typical)
    return Parts(samples=samples, total=total, **parts, other=other, **waiting, waited_for=waited_for)


def join(rounds: Sequence[Parts], samples_per_s: float) -> Parts:
    """The parts of a point: the mean shares of its rounds, of the time that a step takes at the point's speed."""
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
    """What the efficiency of `parts` against `base` is lost to. Both are of `join`. `weak` only words the advice."""
    # Samples of a worker, compared with the base's: the share of the base's time that would be perfect.
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
    # A worker that comes late costs its own time, too, which the mean worker has as compute or input.
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
    if losses:
        text += f" The largest cause is {losses[0]}: {_advice(losses[0], why, setting, base, weak=weak)}."
    return text


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _advice(cause: str, why: Why, setting: ScaleSetting, base: ScaleSetting, *, weak: bool) -> str:
    if cause == "communication":
        return (
            "bytes on their way that no work hides; try a larger batch, and `paceline bandwidth` to see what the "
            "links give"
        )
    if cause == "imbalance":
        if why.waited_for is None:
            return "now one worker comes last, now another; try a quieter machine, or batches of more even work"
        return (
            f"worker {why.waited_for} comes {seconds(why.lateness)} a step later than the others; see what it "
            "does, and what else runs on its cores"
        )
    if cause == "input":
        on = {mod.partition("=")[0] for mod in setting.mods}
        untried = [f"--mod {mod}" for mod in ("resident", "loader=2") if mod.partition("=")[0] not in on]
        return f"the loader does not keep up; try {' or '.join(untried) or 'a dataset that does less for a sample'}"
    if 0 < setting.threads < base.threads:
        return (
            f"a worker has {setting.threads} thread{'s' * (setting.threads > 1)} where at {base.workers} it had "
            f"{base.threads}; try more cores or GPUs rather than more workers"
        )
    if setting.shared_cores:
        return "there are more workers than cores; try fewer"
    phase = max(why.compute_lost, key=lambda phase: why.compute_lost[phase])
    if weak:
        return (
            f"most in {phase}, though a worker has as many samples as at {base.workers}; try fewer --threads, or see "
            "what the workers share: cores, caches, memory"
        )
    if phase == "optimizer":
        return "every worker updates every weight, whatever its samples; try --mod fused_optimizer or a larger batch"
    if phase == "other":
        return "what the script does beside the model, every worker does; try to do less of it in each step"
    return (
        f"most in {phase}: work that is the same for fewer samples, or cores and memory that are shared; try a larger "
        "batch"
    )
