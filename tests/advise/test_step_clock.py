"""A step in a few numbers: what the untraced steps say is believed, and the trace is asked for the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.advise.evidence import PROFILER, clock

CAUSES = ("input", "peer", "synchronisation", "host", "queue")


def traced(*, busy: float, data: float, **idle: float) -> dict[str, float]:
    """A traced step whose device is busy for so long, and idles for these reasons."""
    told = {f"idle_{cause}": idle.get(cause, 0.0) for cause in CAUSES}
    wall = busy + sum(told.values())
    return {"wall": wall, "data": data, "compute": busy, "communication": 0.0, "copy": 0.0, **told}


def test_loading_takes_as_long_as_the_untraced_steps_say() -> None:
    """The profiler makes loading longer than other things, or less so."""
    seen = traced(busy=8.0, data=22.0, input=22.0, host=10.0, queue=3.0)
    known = clock(wall=23.0, data=12.0, traced=seen, waited=0.0)
    assert known.input == pytest.approx(12.0)
    assert known.wall == pytest.approx(23.0)
    assert known.gain(input=12.0) == pytest.approx(23 / 11)
    assert clock(wall=23.0, data=None, traced=seen, waited=0.0).input == pytest.approx(22 * 15 / 35)


def test_loading_beside_a_busy_device_is_no_wait_of_its() -> None:
    seen = traced(busy=20.0, data=10.0, input=5.0, host=1.0)
    assert clock(wall=24.0, data=6.0, traced=seen, waited=0.0).input == pytest.approx(3.0)


def test_where_the_device_decides_steps_do_not_tell_how_the_profiler_slows_the_host() -> None:
    """A device that works all the time hides a host that is faster than the trace shows it."""
    seen = traced(busy=11.0, data=0.0, host=6.0)
    assert clock(wall=13.0, data=0.0, traced=seen, waited=0.0).launching == pytest.approx(17 / PROFILER)
    # Here the device idles for most of an untraced step.
    seen = traced(busy=2.0, data=0.0, host=15.0)
    assert clock(wall=10.0, data=0.0, traced=seen, waited=0.0).launching == pytest.approx(10.0)


seconds = st.floats(0.0, 10.0)


@given(wall=st.floats(0.1, 40.0), data=st.none() | seconds, busy=st.floats(0.1, 10.0), loaded=seconds, waited=seconds,
       idle=st.fixed_dictionaries(dict.fromkeys(CAUSES, seconds)))  # fmt: skip
def test_parts_are_never_negative_and_add_up(
    wall: float, data: float | None, busy: float, loaded: float, waited: float, idle: dict[str, float]
) -> None:
    seen = traced(busy=busy, data=max(loaded, idle["input"]), **idle)
    found = clock(wall=wall, data=data, traced=seen, waited=waited)
    parts = found.input, found.synchronisation, found.peer, found.launching, found.device, found.turns
    assert min(parts) >= 0.0
    assert found.wall <= max(wall, busy) + 1e-9
    race = max(found.launching, found.device) + found.turns
    assert found.input + found.synchronisation + found.peer + race == pytest.approx(found.wall)
    assert found.gain() == pytest.approx(1.0)
