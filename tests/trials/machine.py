"""A machine whose truth is known: a bench for `tune` that computes speeds instead of measuring them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from test_guard import train

from paceline.record.facts import Facts
from paceline.trials.core.result import Measured, Status

Truth = Callable[[frozenset[str]], float]


class Weather:
    """What a busy machine does to the speed of trial after trial: noise of 1, 3 or 8 %, a drift, stalls of single
    trials, and times at which another program takes half of the machine."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.noise = (0.01, 0.03, 0.08)[seed % 3]
        self.drift = self.random.uniform(-0.025, 0.025)  # of a trial
        self.trials = self.halved = 0  # those that the other program still runs

    def speed(self) -> float:
        """The part of the machine's speed that the next trial has."""
        self.trials += 1
        speed = math.exp(self.drift * min(self.trials, 30)) * self.random.lognormvariate(0, self.noise)
        if self.random.random() < 0.1:
            speed *= self.random.uniform(0.3, 0.9)
        if not self.halved and self.random.random() < 0.06:
            self.halved = self.random.randint(1, 6)
        if self.halved:
            self.halved -= 1
            speed /= 2
        return speed


class Clock:
    """Time that passes only while trials run."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent = seconds, 0.0

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    @property
    def limit(self) -> float:
        return max(0.0, self.left) + max(2.0, 0.05 * self.seconds)


class Machine:
    """`truth` gives the samples a second of a set of mods, `noise` is the relative deviation of a trial, `fails` says
    how mods fail, `breaks` which learn something else, `starts` how long mods take to start. The machine gets slower by
    `drift` over 100 trials; after so many trials of the script as it is, only a part of its speed is left to that
    (`held_up`). A fresh process takes `fresh` seconds to start, and mods start there half as long again; `cold` is the
    truth there. `idle` says which mods are not in force, and why; `idle_alone`: in fresh processes. `step`: the phases
    of every trial; `weather`: what other programs do. Half of a trial's time is its start, the other half its steps
    (`enough`). `facts`: what the first trial says of the script. What was
    measured once under a name is not measured again, as with a journal."""

    def __init__(
        self,
        truth: Truth,
        *,
        noise: float = 0.0,
        seed: int = 0,
        budget: float = 600.0,
        trial: float = 5.0,
        fails: Mapping[str, Status] | None = None,
        breaks: tuple[str, ...] = (),
        starts: Mapping[str, float] | None = None,
        drift: float = 0.0,
        fresh: float = 8.0,
        held_up: tuple[int, float] = (10**9, 1.0),
        cold: Truth | None = None,
        idle: Mapping[str, str] | None = None,
        idle_alone: Mapping[str, str] | None = None,
        step: Mapping[str, float] | None = None,
        stops_at: int | None = None,
        journal: dict[str, Measured] | None = None,
        weather: Weather | None = None,
        facts: Facts | None = None,
    ) -> None:
        self.facts = facts
        self.weather = weather
        self.truth, self.noise, self.random = truth, noise, random.Random(seed)
        self.budget, self.trial = Clock(budget), trial
        self.fails, self.breaks, self.starts, self.drift = fails or {}, breaks, starts or {}, drift
        self.fresh, self.held_up, self.cold = fresh, held_up, cold or truth
        self.idle, self.idle_alone = idle or {}, idle_alone or {}
        self.step = dict(step or {})
        self.stops_at, self.journal = stops_at, {} if journal is None else journal
        self.asked: list[str] = []

    def measure(
        self, name: str, *, mods: tuple[str, ...] | None = None, alone: bool = False, **changes: Any
    ) -> Measured:
        self.asked.append(name)
        if name in self.journal:
            return self.journal[name]
        if self.stops_at is not None and len(self.asked) > self.stops_at:
            raise KeyboardInterrupt
        every = frozenset(mods or ()) | {f"workers={n}" for key, n in changes.items() if key == "workers"}
        start = max((self.starts.get(mod, 0.0) for mod in every), default=0.0)
        seconds = self.trial * (1.0 + changes.get("enough", 1.0)) / 2 + start + (self.fresh + start / 2) * alone
        if self.budget.left <= 0 or seconds > self.budget.limit:
            self.budget.spent += self.budget.limit if self.budget.left > 0 else 0.0
            return Measured(name=name, mods=list(mods or ()), workers=1, status=Status.BUDGET)
        self.budget.spent += seconds
        measured = Measured(name=name, mods=list(mods or ()), workers=1, status=Status.OK, seconds=seconds)
        failing = [mod for mod in every if mod in self.fails]
        if failing:
            measured.status, measured.message = Status(self.fails[failing[0]]), f"{failing[0]} is not for this"
        else:
            slower = 1 - self.drift * len(self.asked) / 100
            if not every and name.startswith(("baseline.r", "baseline.a")):
                asked, part = self.held_up
                made = sum(one.startswith(("baseline.r", "baseline.a")) for one in self.asked)
                slower *= part if made > asked else 1.0
            idle = self.idle | (self.idle_alone if alone else {})
            measured.idle = {mod: f"--mod {mod} is not in force: {idle[mod]}" for mod in every if mod in idle}
            truth = self.cold if alone else self.truth
            measured.samples_per_s = truth(every - set(idle)) * slower * self.random.lognormvariate(0, self.noise)
            measured.samples_per_s *= self.weather.speed() if self.weather else 1.0
            measured.losses = losses(
                changes.get("seed_shift", 0), bool(every & set(self.breaks)), "precision=bf16" in every
            )
        measured.step = self.step
        measured.facts = self.facts if changes.get("facts") else None
        self.journal[name] = measured
        return measured


@cache
def _losses(seed: int, broken: bool, rounded: bool) -> tuple[float | None, ...]:
    return tuple(train(seed, rate=-0.3 if broken else 0.3, rounding=4e-3 if rounded else 1e-7, noise=5))


def losses(seed: int, broken: bool, rounded: bool) -> list[float | None]:
    return list(_losses(seed, broken, rounded))


def launch_bound(mods: frozenset[str]) -> float:
    """A small model on a fast GPU: the host launches kernels more slowly than the device computes them, until the step
    is one graph. Before that, nothing that makes the device faster gains anything."""
    data = 0.05 if "resident" in mods else 0.2
    launch = 0.1 if "cuda_graphs" in mods or "compile=reduce-overhead" in mods else 1.0
    device = 0.6
    device *= 0.5 if "precision=bf16" in mods else 0.85 if "tf32" in mods else 1.0
    device *= 0.8 if "channels_last" in mods else 1.0
    device *= 0.9 if "compile=default" in mods else 1.0
    batch = next((int(mod.removeprefix("batch=x")) for mod in mods if mod.startswith("batch=x")), 1)
    return 1000 * batch / (batch * data + max(launch, device * (0.3 + 0.7 * batch)))


def starved(mods: frozenset[str]) -> float:
    """A convolutional network so small that a GPU is idle at ten times its batch; then its layout in memory counts."""
    batch = next((int(mod[7:].partition(":")[0]) for mod in mods if mod.startswith("batch=x")), 1)
    data = 0.5 if "resident" in mods else 1.6 + 0.9 * batch
    launch = 2.0 if "cuda_graphs" in mods else 7.5
    device = (0.5 + 0.64 * batch) * (0.57 if "channels_last" in mods and batch > 1 else 1.0)
    return 128_000 * batch / (data + max(launch, device))


def compute_bound(mods: frozenset[str]) -> float:
    """A large model: the device is what is waited for."""
    device = 1.0
    device *= 0.5 if "precision=bf16" in mods else 0.7 if "tf32" in mods else 1.0
    device *= 0.75 if "compile=default" in mods or "compile=reduce-overhead" in mods else 1.0
    return 100 / (0.02 + device)


def tuned_already(mods: frozenset[str]) -> float:
    """Nothing helps, and some things hurt."""
    return 500.0 * (0.8 if "loader=4" in mods else 1.0) * (0.97 if "cudnn_benchmark" in mods else 1.0)


# The two below follow trials on an H200: milliseconds of a step, of the host, of the device and of the input.


def small_pictures(mods: frozenset[str]) -> float:
    """A ResNet-18 on small pictures, batch 128: bound by launches until the step is a graph, then by the device."""
    graphs = bool(mods & {"cuda_graphs", "compile=reduce-overhead"})
    compiled = "compile=default" in mods
    device = 4.3 * (0.62 if "precision=bf16" in mods else 0.9 if "tf32" in mods else 1.0)
    device *= (0.85 if "channels_last" in mods else 1.0) * (0.88 if compiled else 1.0)
    host = (0.8 if compiled else 1.0) * (12.5 if "precision=bf16" in mods else 11.0)
    data = 0.25 if "resident" in mods else 1.6
    return 128e3 / (data + (max(device, 0.1) + 0.25 if graphs else max(device, host)))


def many_words(mods: frozenset[str]) -> float:
    """A GPT, batch 256: bound by the device; compilation gains most, and takes half a minute to start."""
    compiled = bool(mods & {"compile=default", "compile=reduce-overhead"})
    device = 39.0 * (0.42 if "precision=bf16" in mods else 0.8 if "tf32" in mods else 1.0) * (0.6 if compiled else 1.0)
    host = 0.3 if "cuda_graphs" in mods else 12.0
    return 256e3 / ((0.3 if "resident" in mods else 2.0) + max(device, host))
