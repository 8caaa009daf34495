"""The clock of a host is found from readings whose answers take a while; the told error is never exceeded."""

from __future__ import annotations

import random

import pytest

from paceline.launch.cluster.host_clock import FEW, HostClock


def read(clock: HostClock, times: list[float], offset: float, drift: float, *, ways: random.Random) -> None:
    """Readings at these times of the controller, whose ways there and back differ: 0.1 to 0.5 ms, some held up."""
    for at in times:
        there, back = (ways.uniform(1e-4, 5e-4) + (0.05 if ways.random() < 0.2 else 0.0) for _ in range(2))
        clock.take(at, at + there + offset + drift * (at + there), at + there + back)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("offset", "drift"), [(0.0, 0.0), (-3.25, 0.0), (7.0, 40e-6), (0.002, -80e-6)])
def test_offset_and_drift_are_within_the_told_error(seed: int, offset: float, drift: float) -> None:
    clock, begun = HostClock(), 1_000_000.0
    times = [begun + 0.5 * number for number in range(240)]
    read(clock, times, offset - drift * begun, drift, ways=random.Random(seed))
    found = clock.measured()
    assert found is not None
    assert found.error < 1e-3
    assert found.drift == pytest.approx(drift, abs=5e-6)
    for at in (times[0], times[120], times[-1]):
        assert abs(found.ahead(at) - (offset + drift * (at - begun))) <= found.error


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_has_an_offset_and_no_drift(seed: int) -> None:
    clock = HostClock()
    read(clock, [100.0 + 0.001 * number for number in range(FEW)], 1.5, 0.0, ways=random.Random(seed))
    found = clock.measured()
    assert found is not None
    assert found.drift == 0.0
    assert abs(found.offset - 1.5) <= found.error < 1e-3


def test_a_clock_that_was_set_back_meanwhile_is_no_reading() -> None:
    clock = HostClock()
    clock.take(10.0, 9.0, 4.0)
    assert clock.wants_more
    assert clock.measured() is None
