"""What the demo says of a machine: what to expect before it measures, and two sentences about what it measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.trials.scale.series import Point
from paceline.trials.tune.verdict import Verdict

MOST_ON_CORES = 8  # workers without GPUs: enough to show it, and quick to start
FASTER, SLOWER = 1.1, 0.9  # speed-ups between these are called none
PHASES = {"data": "loading data", "forward": "the forward pass", "backward": "the backward pass"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What workers compute with here. `used` cores or GPUs are what a plain process computes on."""

    cores: int
    gpus: int
    used: int

    @classmethod
    def of(cls, *, cores: int, gpus: int, threads: int | None) -> Machine:
        """`threads` is what the user's environment gives each process; None: torch takes all cores."""
        return cls(cores=cores, gpus=gpus, used=1 if gpus else min(threads or cores, cores))

    @property
    def workers(self) -> int:
        """Of the demo: one for each GPU or core, and at least two, since one shows nothing."""
        return max(2, self.gpus or min(self.cores, MOST_ON_CORES))

    @property
    def full(self) -> bool:
        """Whether a plain process leaves nothing for more workers to compute on."""
        return self.used >= (self.gpus or self.cores)

    @property
    def all_units(self) -> str:
        """`its GPU`, `both cores`, `all 4 cores`."""
        number, noun = (self.gpus, "GPU") if self.gpus else (self.cores, "core")
        return f"its {noun}" if number == 1 else f"both {noun}s" if number == 2 else f"all {number} {noun}s"


def expect(machine: Machine) -> str:
    """What to expect of more workers, said before they are measured."""
    has = f"{machine.gpus or 'no'} GPU{'s' * (machine.gpus != 1)} and {machine.cores} core{'s' * (machine.cores != 1)}"
    if machine.full:
        return (
            f"This machine has {has}. A plain process already computes on {machine.all_units}: {machine.workers} "
            "workers get no more to compute with, so expect no speed-up, and perhaps a slow-down. Part 2 measures "
            "what helps instead."
        )
    units = machine.gpus or machine.cores
    noun = "GPU" if machine.gpus else "core"
    return (
        f"This machine has {has}. A plain process computes on {machine.used} {noun}{'s' * (machine.used != 1)}, "
        f"{machine.workers} workers on {min(units, machine.workers * machine.used)}: expect a speed-up."
    )


def about_workers(machine: Machine, point: Point | None) -> str:
    """The first sentence: what more workers gave, and why."""
    if point is None:
        return f"Workers: {machine.workers} workers could not be measured."
    text = f"Workers: {machine.workers} workers ran at {point.speedup:.2f}× the speed of one"
    if point.speedup > FASTER:
        text += f", although they share {machine.all_units}" if machine.full else ""
    else:
        text += ", slower" if point.speedup < SLOWER else ", no gain"
        text += f", because one process already computes on {machine.all_units}" if machine.full else ""
    if point.why is not None and point.why.seconds["total"] > 0:
        share = {cause: seconds / point.why.seconds["total"] for cause, seconds in point.why.seconds.items()}
        waits = share["communication"] + share["imbalance"]
        text += (
            f"; of a step, {share['compute']:.0%} is compute, {waits:.0%} communication and waiting for each other, "
            f"{share['input']:.0%} input"
        )
    return f"{text}."


def about_tuning(verdict: Verdict | None, step: Mapping[str, float], *, skipped: str = "") -> str:
    """The second sentence: which mods helped, and where. `step` is a tuned step by its parts."""
    if verdict is None or verdict.baseline is None or verdict.final is None:
        return f"Mods: {skipped or 'not measured'}."
    final, before = verdict.final, verdict.baseline.step
    if not final.mods:
        return f"Mods: none that was tried is faster than the noise of this machine ({verdict.noise:.1%} a trial)."
    text = f"Mods: {' and '.join(final.mods)} made the script {final.gain:.2f}× as fast on the same machine"
    saved = {part: before.get(part, 0.0) - step.get(part, 0.0) for part in before if part != "total"}
    most = max(saved, key=lambda part: saved[part], default="")
    if most and saved[most] > 0:
        text += (
            f", mostly because {PHASES.get(most, most)} takes {step.get(most, 0.0) * 1e3:.3g} ms a step instead of "
            f"{before[most] * 1e3:.3g} ms"
        )
    return f"{text}."
