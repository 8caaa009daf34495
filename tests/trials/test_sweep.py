"""The walk along batch sizes, on made-up machines whose curve is known; and its verdict."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.reports.sweep import charts
from paceline.trials.core.bench import Budget, Interrupted
from paceline.trials.core.result import Measured, Status
from paceline.trials.sweep.search import CLOSE, FINE, Ceiling, Point, Sweep, Verdict, judge, named_knee


class Machine:
    """Stands in for trials: samples a second at a batch, and the batch that no longer fits."""

    def __init__(self, speed: Callable[[int], float], *, own: int = 16, most: float = math.inf, data: int = 10**9):
        self.spread = 0.0  # of a trial's blocks around its speed
        self.speed, self.own, self.most, self.data = speed, own, most, data
        self.asked: list[tuple[int, int]] = []
        self.says: dict[int, tuple[str, str]] = {}  # status and message at a batch
        self.seconds = 1.0

    def __call__(self, size: int | None, round: int) -> Measured:
        batch = self.own if size is None else size
        self.asked.append((batch, round))
        status, message = self.says.get(batch, ("ok", ""))
        if batch > self.most:
            status, message = "memory", "out of memory: it tried to allocate more"
        batch = min(batch, self.data)
        speed = self.speed(batch) if status == "ok" else 0.0
        return Measured(
            name=f"{batch}.{round}",
            mods=["tf32", f"batch={batch}:none"],
            workers=1,
            status=Status(status),
            message=message,
            samples_per_s=speed,
            low=(1 - self.spread) * speed,
            high=(1 + self.spread) * speed,
            batch=batch,
            memory=1000 * batch,
            seconds=self.seconds,
        )


def swept(machine: Machine, *, start=None, to=None, repeat=1, budget=None, to_the_end=False) -> Verdict:
    sweep = Sweep(machine, Budget(budget), start=start, to=to, repeat=repeat, to_the_end=to_the_end)
    sweep.run()
    return judge(sweep, workers=1, mods=[])


def saturating(half: float, peak: float = 1000.0) -> Callable[[int], float]:
    """Half of its peak at `half` samples a step."""
    return lambda batch: peak * batch / (batch + half)


@given(st.floats(1.0, 500.0), st.integers(1, 64), st.sampled_from([math.inf, 1000, 3000]))
def test_the_knee_is_the_smallest_batch_near_the_best(half, own, most):
    machine = Machine(saturating(half), own=own, most=most)
    verdict = swept(machine)
    speeds = {p.batch: p.samples_per_s for p in verdict.points if p.fits}
    assert verdict.best == max(speeds, key=lambda batch: speeds[batch])
    near = min(batch for batch, speed in speeds.items() if speed >= (1 - CLOSE) * speeds[verdict.best])
    below = [batch for batch in speeds if batch < near]
    if below:
        # No batch that was left out could be the knee, but one that is nearly this one.
        assert verdict.knee == near
        assert verdict.knee - max(below) <= max(1, verdict.knee // FINE)
    else:
        assert verdict.knee is None or len(speeds) == 1, "a curve that does not rise has no knee"
    assert len(machine.asked) <= 20


@given(st.integers(1, 64), st.integers(1, 5000))
def test_memory_is_the_ceiling_and_is_closed_in_on(own, most):
    machine = Machine(lambda batch: float(batch), own=own, most=max(own, most))
    verdict = swept(machine)
    assert verdict.ceiling == "memory"
    assert verdict.largest is not None
    assert verdict.largest <= machine.most
    lost = [p for p in verdict.points if not p.fits]
    assert min(p.batch for p in lost) > machine.most
    assert min(p.batch for p in lost) - verdict.largest <= max(1, min(p.batch for p in lost) // FINE)
    assert all("allocate" in p.message and not p.samples_per_s for p in lost)
    assert [p.batch for p in verdict.points] == sorted(p.batch for p in verdict.points)


def test_two_flat_doublings_are_the_end():
    machine = Machine(lambda batch: min(batch, 64) * 10.0)
    verdict = swept(machine)
    assert verdict.ceiling == "flat"
    assert max(batch for batch, _ in machine.asked) == 256
    assert (verdict.knee, verdict.own) == (64, 16)
    assert verdict.keep == "batch=64"
    assert (verdict.best, verdict.tied) == (None, [64, 128, 256]), "a tie is a tie"


@pytest.mark.parametrize(("spread", "knee", "tied"), [(0.0, 64, []), (0.02, 64, [64, 128]), (0.6, None, [16, 256])])
def test_a_knee_and_a_best_are_named_only_above_the_noise(spread, knee, tied):
    speeds = {16: 300.0, 32: 600.0, 64: 960.0, 128: 990.0, 256: 900.0}
    machine = Machine(lambda batch: speeds.get(batch, 100.0))
    machine.spread = spread
    verdict = swept(machine)
    assert verdict.knee == knee
    assert verdict.best == (None if tied else 128)
    assert [batch for batch in verdict.tied if batch in tied] == tied
    assert bool(verdict.keep) == (knee is not None)
    assert bool(verdict.warning) == (spread > 0.5)


def test_only_memory_does_not_fit():
    machine = Machine(float, most=100)
    machine.says[64] = ("too short", "the script ended after 3 steps")
    assert {p.batch: p.fits for p in swept(machine).points if not p.samples_per_s} == {64: None}
    assert {p.fits for p in swept(Machine(float, most=100)).points if p.batch > 100} == {False}


@given(st.integers(1, 200), st.integers(1, 64), st.integers(3000, 9000))
def test_with_the_end_asked_for_it_goes_on_to_where_memory_ends(corner, own, most):
    machine = Machine(lambda batch: float(min(batch, corner)), own=own, most=most)
    near, far = swept(machine), swept(machine, to_the_end=True)
    assert (near.ceiling, far.ceiling) == ("flat", "memory")
    lost = [p for p in far.points if not p.fits]
    assert {p.status for p in lost} == {"memory"}
    assert far.largest <= most < min(p.batch for p in lost) <= far.largest + min(p.batch for p in lost) // FINE
    assert far.knee == near.knee


def test_the_end_may_be_that_of_the_data_or_one_that_was_asked_for():
    flat = Machine(lambda batch: 100.0, data=1000)
    assert swept(flat, to_the_end=True).ceiling == "data"
    assert swept(flat, to=512, to_the_end=True).ceiling == "to"


def test_one_flat_doubling_is_not():
    steps = {16: 100.0, 32: 101.0, 64: 200.0, 128: 201.0, 256: 199.0}
    assert swept(Machine(lambda batch: steps.get(batch, 150.0))).best == 128


@pytest.mark.parametrize(("start", "to", "asked"), [(8, 64, [8, 16, 32, 64]), (8, 50, [8, 16, 32, 50]), (8, 8, [8])])
def test_from_and_to(start, to, asked):
    machine = Machine(float)
    verdict = swept(machine, start=start, to=to)
    assert [batch for batch, _ in machine.asked][: len(asked)] == asked
    assert max(machine.asked) == (to, 1)
    assert (verdict.ceiling, verdict.own) == ("to", None)


def test_a_small_data_set_is_a_ceiling():
    verdict = swept(Machine(float, data=100))
    assert verdict.ceiling == "data"
    assert "128 samples" in verdict.why
    assert "gave 100" in verdict.why
    assert verdict.largest == 100


def test_a_script_that_ends_too_soon_at_a_large_batch():
    machine = Machine(float)
    machine.says = {64: ("too short", "the script ended after 3 steps")}
    verdict = swept(machine)
    assert (verdict.ceiling, verdict.why, verdict.largest) == ("too short", "the script ended after 3 steps", 32)


@pytest.mark.parametrize("status", ["memory", "unsupported", "failed", "too short"])
def test_a_first_trial_that_fails_is_all(status):
    machine = Machine(float)
    machine.says = {16: (status, "because")}
    verdict = swept(machine)
    assert (verdict.points, verdict.knee, verdict.best, verdict.ceiling, verdict.why) == (
        [],
        None,
        None,
        status,
        "because",
    )
    assert machine.asked == [(16, 1)]


def test_contenders_are_measured_in_rounds_and_the_others_are_not():
    noisy = {(64, 1): 2.0, (64, 2): 1.0, (64, 3): 1.0}
    machine = Machine(float)
    machine.speed = lambda batch: 100.0 * min(batch, 64) * noisy.get((batch, machine.asked[-1][1]), 1.0)
    verdict = swept(machine, repeat=3)
    rounds = {p.batch: p.rounds for p in verdict.points}
    assert rounds[16] == 1
    assert rounds[64] == 3
    assert {p.batch: p.samples_per_s for p in verdict.points}[64] == 6400.0


def test_the_budget_ends_it():
    machine = Machine(float)
    machine.seconds = 40.0
    verdict = swept(machine, budget=70.0)
    assert verdict.ceiling == "budget"
    assert [batch for batch, _ in machine.asked] == [16]


class FewTrials(Budget):
    """Affords so many trials."""

    def __init__(self, trials: int) -> None:
        super().__init__(None)
        self.trials = trials

    def affords(self, seconds: float) -> bool:
        self.trials -= 1
        return self.trials >= 0


@pytest.mark.parametrize(
    ("trials", "ceiling", "unfinished"), [(1, "budget", True), (3, "memory", True), (99, "memory", False)]
)
def test_a_budget_that_ends_before_the_knee_is_found_is_told(trials, ceiling, unfinished):
    machine = Machine(float, most=100)
    sweep = Sweep(machine, FewTrials(trials), start=None, to=None, repeat=1)
    sweep.run()
    verdict = judge(sweep, workers=1, mods=[])
    assert (verdict.ceiling, verdict.unfinished) == (ceiling, unfinished)
    assert verdict.best == verdict.largest <= 100


def test_what_was_measured_before_an_interrupt_is_kept():
    machine = Machine(float)

    def stopped(size, round):
        if size == 64:
            raise Interrupted(130)
        return machine(size, round)

    sweep = Sweep(stopped, Budget(None), start=None, to=None, repeat=1)
    with pytest.raises(Interrupted):
        sweep.run()
    verdict = judge(sweep, workers=1, mods=[], interrupted=True)
    assert [p.batch for p in verdict.points] == [16, 32]
    assert (verdict.best, verdict.ceiling) == (32, "")


def test_the_chart_tells_what_does_not_fit_from_what_failed_otherwise():
    """A script that ended too soon says nothing about memory."""
    good = [Point(batch=64 << k, fits=True, samples_per_s=100.0 + k, low=90.0, high=110.0 + k) for k in range(2)]
    for status, words in (("memory", "does not fit: 256"), ("too short", "could not be measured: 256")):
        points = [*good, Point(batch=256, fits=False, status=Status(status), message="why")]
        verdict = Verdict(
            workers=1,
            mods=[],
            own=64,
            points=points,
            knee=64,
            best=128,
            largest=128,
            ceiling=Ceiling(status),
            why="why",
        )
        speed, memory = charts(verdict)
        assert [mark.name for mark in speed.marks] == ["knee: 64", words]
        assert list(speed.series[0].x) == list(memory.series[0].x) == [64, 128]


def test_one_measured_batch_is_no_curve_with_a_knee():
    """As where the budget ends after the first batch."""
    point = Point(batch=256, fits=True, status=Status.OK, samples_per_s=157.0, low=150.0, high=160.0)
    assert named_knee([point]) is None
