"""Why efficiency falls: made-up steps whose truth is known, and that the losses always add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.record import Step
from paceline.record.phases import PHASES
from paceline.trials.scale.why import CAUSES, PARTS, Parts, ScaleSetting, Why, explain, join, take_apart


def step(number: int = 1, *, samples: int = 64, split: bool = True, **phases: float) -> Step:
    phases = dict.fromkeys(PHASES, 0.0) | phases
    return Step(step=number, at=0.0, samples=samples, total=sum(phases.values()), split=split, **phases)


def alike(ranks: list[dict[str, float]], *, samples: int = 64, steps: int = 9) -> Parts:
    """Of a run in which every worker does the same in every step."""
    parts = take_apart([[step(k, samples=samples, **phases) for k in range(steps)] for phases in ranks])
    assert parts is not None
    return parts


def why(parts: Parts, base: Parts, workers: int = 2, *, weak: bool = False, **about: object) -> Why:
    one, many = ScaleSetting(workers=1, threads=1), ScaleSetting(workers=workers, **{"threads": 1} | about)  # type: ignore[arg-type]
    told = explain(at_its_speed(parts), at_its_speed(base), many, one, weak=weak)
    assert sum(told.lost.values()) == pytest.approx(1 - efficiency(parts, base, workers))
    return told


def at_its_speed(parts: Parts) -> Parts:
    return join([parts], parts.samples / parts.total)


def efficiency(parts: Parts, base: Parts, workers: int) -> float:
    return (parts.samples / parts.total) / (base.samples / base.total) / workers


BASE = {"data": 0.002, "forward": 0.03, "backward": 0.06, "optimizer": 0.006, "other": 0.002}
HALF = {phase: seconds / 2 for phase, seconds in BASE.items()}


def test_perfect_scaling_loses_nothing():
    told = why(alike([HALF, HALF]), alike([BASE]))
    assert all(lost == pytest.approx(0) for lost in told.lost.values())
    assert told.sentence == "2 workers reach 100 %: nothing is lost."


def test_a_slow_worker_is_imbalance_and_is_named():
    """Worker 1 needs 40 ms more in each step; worker 0 waits for it, and both wait 5 ms for the bytes."""
    parts = alike([HALF | {"communication": 0.045}, HALF | {"forward": 0.055, "communication": 0.005}])
    assert parts.imbalance == pytest.approx(0.020)  # of the mean worker
    assert parts.communication == pytest.approx(0.005)
    told = why(parts, alike([BASE]))
    assert told.waited_for == 1
    # Half of the 40 ms is the slow one's own work, half is the other's waiting for it.
    assert told.lost["imbalance"] == pytest.approx(0.020 / 0.095)
    assert told.lost["compute"] == pytest.approx(0.020 / 0.095)
    assert told.lateness == pytest.approx(0.040)
    # A little more compute on both does not make compute the larger cause: half of the lateness is in it.
    slower = HALF | {"backward": 0.034}
    parts = alike([slower | {"communication": 0.045}, slower | {"forward": 0.055, "communication": 0.005}])
    told = why(parts, alike([BASE]))
    assert told.lost["compute"] > told.lost["imbalance"]
    assert "largest cause is imbalance: rank 1 is 40 ms per step later than the other workers" in told.sentence


def test_a_delay_after_the_collectives_is_imbalance_too():
    """Worker 1 dawdles after the collectives of odd steps: in these it is late, in the next ones worker 0 waits."""
    first, second = [], []
    for k in range(40):
        late = 0.03 * (k % 2)
        first.append(step(k, forward=0.05, communication=0.002 + (0.03 - late) * (k > 0)))
        second.append(step(k, forward=0.05, communication=0.002, optimizer=late))
    parts = take_apart([first[1:], second[1:]])
    assert parts is not None
    assert parts.communication == pytest.approx(0.002)
    assert parts.imbalance == pytest.approx(0.0075, rel=0.1)
    assert parts.waited_for[0] == pytest.approx(0)


def test_a_slow_network_is_communication():
    told = why(alike([HALF | {"communication": 0.05}] * 2), alike([BASE]))
    assert told.lost["communication"] == pytest.approx(0.05 / 0.1)
    assert told.lost["imbalance"] == pytest.approx(0)
    assert told.waited_for is None
    assert "largest cause is communication" in told.sentence
    assert "paceline bandwidth" in told.sentence


def test_a_loader_that_does_not_keep_up_is_input():
    told = why(alike([HALF | {"data": 0.101}] * 2), alike([BASE]))
    assert told.lost["input"] == pytest.approx(0.1 / 0.15)
    assert "--mod resident or --mod loader=2" in told.sentence
    told = why(alike([HALF | {"data": 0.101}] * 2), alike([BASE]), mods=("resident",))
    assert "try --mod loader=2" in told.sentence


@pytest.mark.parametrize(
    ("phase", "about", "says"),
    [
        ("forward", {}, "most in forward"),
        ("optimizer", {}, "--mod fused_optimizer"),
        ("other", {}, "outside the model"),
        ("backward", {"shared_cores": True}, "more workers than cores"),
    ],
)
def test_compute_that_does_not_shrink(phase, about, says):
    told = why(alike([HALF | {phase: BASE[phase]}] * 2), alike([BASE]), **about)
    assert told.lost["compute"] == pytest.approx(1 - 0.1 / (2 * sum((HALF | {phase: BASE[phase]}).values())))
    assert max(told.compute_lost, key=lambda part: told.compute_lost[part]) == phase
    assert says in told.sentence


def test_threads_that_a_worker_no_longer_has():
    told = explain(
        at_its_speed(alike([BASE, BASE])),
        at_its_speed(alike([BASE])),
        ScaleSetting(workers=2, threads=1),
        ScaleSetting(workers=1, threads=2),
    )
    assert told.sentence == (
        "2 workers reach 50 %: 49.0 points go to compute and 1.0 to input. The largest cause is compute: each worker "
        "has 1 thread instead of 2 with 1 worker; use more cores or GPUs rather than more workers."
    )


def test_weak_scaling_expects_the_same_time():
    told = why(alike([BASE, BASE], samples=128), alike([BASE]), weak=True)
    assert all(lost == pytest.approx(0) for lost in told.lost.values())
    told = why(alike([BASE | {"forward": 0.13}] * 2, samples=128), alike([BASE]), weak=True)
    assert told.lost["compute"] == pytest.approx(0.5)
    assert "as many samples as with 1 worker" in told.sentence


def test_more_than_perfect_is_gained():
    told = why(alike([HALF | {"forward": 0.005, "communication": 0.001}] * 2), alike([BASE]))
    assert told.lost["compute"] == pytest.approx(-0.010 / 0.041)
    assert told.sentence.startswith(
        "2 workers reach 122 %: 2.4 points go to communication; they gain 24.4 points in comp"
    )
    assert "The largest cause" not in told.sentence, "more than perfect needs no advice"


def test_steps_with_evaluation_are_not_typical_unless_all_are():
    plain = [step(k, forward=0.01) for k in range(3)]
    evaluating = [step(k, forward=0.01, evaluation=0.5) for k in range(3, 20)]
    parts = take_apart([plain + evaluating])
    assert parts is not None
    assert (parts.total, parts.other) == pytest.approx((0.01, 0))
    parts = take_apart([evaluating])
    assert parts is not None
    assert (parts.total, parts.other) == pytest.approx((0.51, 0.5))


@pytest.mark.parametrize("odd", [3.0, 0.001])
def test_an_odd_step_is_not_typical(odd):
    steps = [step(k, forward=0.01) for k in range(20)]
    steps[7] = step(7, data=odd)
    parts = take_apart([steps])
    assert parts is not None
    assert (parts.total, parts.input) == pytest.approx((0.01, 0))


def test_only_steps_that_all_have_split_and_made():
    """Short steps on a GPU are split one in ten; a worker that was killed has fewer."""
    plain = step(samples=64, split=False, other=0.5)
    first = [step(k, forward=0.01 * (k % 3 == 0), other=0.02, split=k % 3 == 0) for k in range(20)]
    parts = take_apart([first, first[:11]])
    assert parts is not None
    assert (parts.forward, parts.other) == pytest.approx((0.01, 0.02))
    assert take_apart([[plain], [plain]]) is None
    assert take_apart([[], []]) is None
    assert take_apart([]) is None


SECONDS = st.floats(0, 10) | st.just(0.0)


@st.composite
def runs(draw: st.DrawFn, workers: int) -> list[list[Step]]:
    samples = draw(st.integers(1, 4096))
    return [
        [
            step(k, samples=samples, **{phase: draw(SECONDS) for phase in PHASES[:5]}, other=draw(st.floats(1e-3, 1)))
            for k in range(draw(st.integers(1, 4)))
        ]
        for _ in range(workers)
    ]


@given(st.data(), st.integers(1, 3), st.integers(1, 5), st.booleans())
def test_the_parts_and_the_losses_add_up(data, base_workers, workers, weak):
    """Whatever was recorded, in whatever rounds, and whatever the batch: strong scaling is one of equal samples, weak
    of samples that grow. Speeds are medians, hence not those of the parts."""
    parts = [take_apart(data.draw(runs(workers))) for _ in range(2)]
    base = [take_apart(data.draw(runs(base_workers)))]
    for each in (*parts, *base):
        assert each is not None
        assert sum(getattr(each, part) for part in PARTS) == pytest.approx(each.total)
        assert all(getattr(each, part) >= -1e-9 for part in PARTS)
        assert sum(each.waited_for) == pytest.approx(each.imbalance)
    speed, base_speed = data.draw(st.floats(1, 1e6)), data.draw(st.floats(1, 1e6))
    told = explain(
        join(parts, speed),
        join(base, base_speed),
        ScaleSetting(workers=workers),
        ScaleSetting(workers=base_workers),
        weak=weak,
    )
    efficiency = speed / base_speed * base_workers / workers
    assert sum(told.lost.values()) == pytest.approx(1 - efficiency, abs=1e-9 * max(1.0, efficiency))
    assert sum(told.compute_lost.values()) == pytest.approx(told.lost["compute"])
    assert sum(told.seconds[cause] for cause in CAUSES) == pytest.approx(told.seconds["total"])
    assert bool(told.sentence) == (workers != base_workers)
