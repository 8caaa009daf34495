"""Phases of a worker's time add up to the whole, whatever is nested in what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm import stopwatch
from paceline.comm.stopwatch import UNSPLIT, Stopwatch
from paceline.record.phases import CHECK


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


def test_time_belongs_to_the_innermost_phase(clock: Clock) -> None:
    watch = Stopwatch()
    clock.now += 1
    watch.enter("forward")
    clock.now += 10
    watch.enter("communication")
    clock.now += 100
    watch.leave()
    clock.now += 1000
    watch.leave()
    clock.now += 10000
    watch.lap("note")
    assert watch.laps() == [({"other": 10001.0, "forward": 1010.0, "communication": 100.0}, "note")]


def test_a_lap_may_end_inside_a_phase(clock: Clock) -> None:
    watch = Stopwatch()
    watch.enter("optimizer")
    clock.now += 3
    watch.lap(1)
    clock.now += 4
    watch.leave()
    watch.lap(2)
    assert watch.laps() == [({"other": 0.0, "optimizer": 3.0}, 1), ({"optimizer": 4.0, "other": 0.0}, 2)]


def test_all_that_happens_in_a_check_is_the_check(clock: Clock) -> None:
    watch, spans = Stopwatch(), []
    watch.on_span = lambda *span: spans.append(span)
    for phase in ("forward", "evaluation"):
        watch.enter(phase)
        clock.now += 1
        with watch.checking():
            clock.now += 10
            watch.enter("communication")
            clock.now += 100
            watch.leave()
            with watch.checking():
                clock.now += 1000
        clock.now += 2
        watch.leave()
    watch.lap(None)
    assert watch.laps() == [({"other": 0.0, "forward": 3.0, "evaluation": 3.0, CHECK: 2220.0}, None)]
    assert [end - start for name, start, end in spans if name == CHECK] == [1110.0, 1110.0], "one span per check"
    assert watch.now() == 6.0, "this clock stands still during checks"


def test_collectives_of_an_evaluation_are_part_of_it(clock: Clock) -> None:
    watch = Stopwatch()
    watch.enter("evaluation")
    watch.enter("communication")
    clock.now += 5
    watch.leave()
    watch.leave()
    watch.lap(None)
    assert watch.laps() == [({"other": 0.0, "evaluation": 5.0}, None)]


def test_laps_are_given_back_once(clock: Clock) -> None:
    watch = Stopwatch()
    watch.lap("a")
    watch.lap("b")
    assert [note for _, note in watch.laps()] == ["a", "b"]
    assert watch.laps(wait=True) == []


def test_the_phase_is_the_innermost() -> None:
    watch = Stopwatch()
    assert watch.phase == "other"
    watch.enter("data")
    assert watch.phase == "data"
    watch.leave()
    assert watch.phase == "other"


# What a worker may do, as (what, seconds that pass before it).
walks = st.lists(
    st.tuples(
        st.sampled_from(["enter data", "enter forward", "enter communication", "leave", "lap"]),
        st.integers(0, 1000),
    ),
    max_size=40,
)


@given(walks)
def test_whatever_happens_the_phases_of_all_laps_add_up_to_the_time_that_passed(walk: Any) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopwatch, "time", clock)
        watch, depth = Stopwatch(), 0
        for what, seconds in walk:
            clock.now += seconds
            if what == "lap":
                watch.lap(None)
            elif what == "leave":
                if depth:
                    watch.leave()
                    depth -= 1
            else:
                watch.enter(what.split()[1])
                depth += 1
        watch.lap(None)
        assert sum(sum(seconds.values()) for seconds, _ in watch.laps()) == clock.now


class Event:
    """A mark on a device's time line, passed when the device gets there."""

    device: Clock
    passed: float

    def record(self, stream: Any) -> None:
        self.at = Event.device.now

    def query(self) -> bool:
        return self.at <= Event.passed

    def synchronize(self) -> None:
        Event.passed = max(Event.passed, self.at)

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1000.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Clock:
    Event.device, Event.passed = Clock(), 0.0
    monkeypatch.setattr(stopwatch.torch.cuda, "Event", lambda enable_timing: Event())
    monkeypatch.setattr(stopwatch.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(stopwatch.torch.cuda, "current_stream", lambda device: "stream")
    monkeypatch.setattr(stopwatch.torch._C, "_cuda_getCurrentStream", lambda device: (0, 0, 1), raising=False)
    return Event.device


def test_on_a_device_laps_are_read_when_it_has_passed_them(clock: Clock, device: Clock) -> None:
    watch = Stopwatch()
    clock.now += 7  # on the host, before the first tensor on the device
    watch.use_cuda()
    watch.enter("forward")
    device.now += 2
    watch.leave()
    watch.lap("first")
    assert watch.laps() == [], "the device is not there yet: nobody waits for it"
    Event.passed = device.now
    assert watch.laps() == [({"other": 7.0, "forward": 2.0}, "first")]


def test_on_a_device_the_end_waits_for_the_last_lap(clock: Clock, device: Clock) -> None:
    watch = Stopwatch()
    watch.use_cuda()
    watch.use_cuda()
    watch.enter("backward")
    device.now += 5
    watch.lap("last")
    assert watch.laps(wait=True) == [({"other": 0.0, "backward": 5.0}, "last")]


def test_of_short_laps_on_a_device_one_in_ten_is_split_but_evaluation_and_checks_always(
    clock: Clock, device: Clock
) -> None:
    watch = Stopwatch()
    watch.use_cuda()

    def step(seconds: float) -> None:
        watch.enter("forward")
        clock.now += seconds
        device.now += seconds
        watch.leave()

    for number in range(22):
        step(0.001)
        if number == 5:
            watch.enter("evaluation")
            device.now += 7.0
            watch.leave()
        if number == 6:
            watch.enter("forward")
            with watch.checking():
                device.now += 7.0
            watch.leave()
        watch.lap(number)
    laps = watch.laps(wait=True)
    # The first ones come before anything is known of their length.
    assert [number for seconds, number in laps if UNSPLIT not in seconds] == [0, 10, 20]
    assert laps[5][0] == pytest.approx({UNSPLIT: 0.001, "evaluation": 7.0})
    assert laps[6][0] == pytest.approx({UNSPLIT: 0.001, CHECK: 7.0})
    assert all(sum(s.values()) == pytest.approx(0.001 + 7.0 * (n in (5, 6))) for s, n in laps)


def test_long_laps_on_a_device_are_all_split(clock: Clock, device: Clock) -> None:
    watch = Stopwatch()
    watch.use_cuda()
    for number in range(5):
        clock.now += 1.0
        watch.lap(number)
    assert all(UNSPLIT not in seconds for seconds, _ in watch.laps(wait=True))
