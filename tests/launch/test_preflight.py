"""Which hosts try to connect to which before a run."""

from __future__ import annotations

import pytest
import stranger

from paceline.launch.cluster.facts import Listeners, connect_all
from paceline.launch.cluster.preflight import MANY, _partners

LISTENING = 64  # connections that a listener takes while nobody accepts them


@pytest.mark.parametrize("count", [2, 3, MANY, MANY + 1, 100, 1000])
def test_every_host_tries_and_is_tried_by_few(count: int) -> None:
    tried: dict[int, int] = {}
    for number in range(count):
        partners = _partners(number, count)
        assert number not in partners
        assert len(set(partners)) == len(partners)
        for other in partners:
            tried[other] = tried.get(other, 0) + 1
    assert tried.keys() == set(range(count))
    assert max(tried.values()) < LISTENING
    if count <= MANY:
        assert min(tried.values()) == count - 1


def test_connections_of_strangers_do_not_make_a_host_look_cut_off() -> None:
    """The kernel keeps few connections that nobody has accepted."""
    listeners = Listeners(["127.0.0.1"])
    place = ("127.0.0.1", "127.0.0.1", listeners.ports[0])
    held = stranger.come(listeners.ports[0], 3 * LISTENING)
    try:
        assert connect_all([place] * 2, 10.0) == ("", "")
    finally:
        listeners.close()
        for each in held:
            each.close()
