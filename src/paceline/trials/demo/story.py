"""The demo's sentences about a machine: what to expect before measuring, and two conclusions afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.trials.core.interval import FEWEST
from paceline.trials.scale.series import Point
from paceline.trials.tune.verdict import Verdict
from paceline.units import count

MOST_ON_CORES = 8  # most workers on a machine without GPUs, so that they start quickly
PHASES = {"data": "loading data", "forward": "the forward pass", "backward": "the backward pass"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cores and GPUs of this machine. A plain process computes on `used` of them."""

    cores: int
    gpus: int
    used: int

    @classmethod
    def of(cls, *, cores: int, gpus: int, threads: int | None) -> Machine:
        """`threads` is the number that the user's environment sets for each process; None: torch uses all cores."""
        return cls(cores=cores, gpus=gpus, used=1 if gpus else min(threads or cores, cores))

    @property
    def workers(self) -> int:
        """The demo's number of workers: one per GPU or core, at least two, because one worker shows no scaling."""
        return max(2, self.gpus or min(self.cores, MOST_ON_CORES))

    @property
    def full(self) -> bool:
        """Whether a plain process already uses all cores or GPUs."""
        return self.used >= (self.gpus or self.cores)

    @property
    def all_units(self) -> str:
        """`its GPU`, `both cores`, `all 4 cores`."""
        number, noun = (self.gpus, "GPU") if self.gpus else (self.cores, "core")
        return f"its {noun}" if number == 1 else f"both {noun}s" if number == 2 else f"all {number} {noun}s"


def expect(machine: Machine) -> str:
    """What to expect of more workers, printed before they are measured."""
    has = f"{machine.gpus or 'no'} GPU{'s' * (machine.gpus != 1)} and {machine.cores} core{'s' * (machine.cores != 1)}"
    if machine.full:
        return (
            f"This machine has {has}. A plain process already computes on {machine.all_units}: {machine.workers} "
            "workers have no more hardware than that, so expect no speed-up, and perhaps a slow-down. Part 2 measures "
            "which mods help instead."
        )
    units = machine.gpus or machine.cores
    noun = "GPU" if machine.gpus else "core"
    return (
        f"This machine has {has}. A plain process computes on {machine.used} {noun}{'s' * (machine.used != 1)}, "
        f"{machine.workers} workers on {min(units, machine.workers * machine.used)}: expect a speed-up."
    )


def about_workers(machine: Machine, point: Point | None) -> str:
    """The first sentence: the speed-up of more workers. A cause is named only where there is a difference."""
    if point is None:
        return f"Workers: {machine.workers} workers could not be measured."
    shown = f"{point.speedup_low:.2f}–{point.speedup_high:.2f}× in {count(point.rounds, 'round')}"
    if point.tied:
        if point.rounds < FEWEST:
            return f"Workers: {machine.workers} workers cannot be told from one: {shown}, and three rounds are needed."
        return f"Workers: no difference between {machine.workers} workers and one was measured ({shown})."
    text = f"Workers: {machine.workers} workers ran at {point.speedup:.2f}× the speed of one ({shown})"
    if point.speedup < 1 and machine.full:
        text += f", because one process already computes on {machine.all_units}"
    if point.why is not None and point.why.seconds["total"] > 0:
        share = {cause: seconds / point.why.seconds["total"] for cause, seconds in point.why.seconds.items()}
        waits = share["communication"] + share["imbalance"]
        text += (
            f"; a step is {share['compute']:.0%} compute, {waits:.0%} communication and waiting for other workers, "
            f"{share['input']:.0%} input"
        )
    return f"{text}."


def about_tuning(verdict: Verdict | None, step: Mapping[str, float], *, skipped: str = "") -> str:
    """The second sentence: which mods helped, and in which part of a step. `step`: seconds of each part, tuned."""
    if verdict is None or verdict.baseline is None or verdict.final is None:
        return f"Mods: {skipped or 'not measured'}."
    final, before = verdict.final, verdict.baseline.step
    if not final.mods:
        return f"Mods: {verdict.conclusion.sentence}."
    text = f"Mods: {' and '.join(final.mods)} made the script {final.gain:.2f}× as fast on the same machine"
    saved = {part: before.get(part, 0.0) - step.get(part, 0.0) for part in before if part != "total"}
    most = max(saved, key=lambda part: saved[part], default="")
    if most and saved[most] > 0:
        text += (
            f", mostly because {PHASES.get(most, most)} takes {step.get(most, 0.0) * 1e3:.3g} ms per step instead of "
            f"{before[most] * 1e3:.3g} ms"
        )
    return f"{text}."
