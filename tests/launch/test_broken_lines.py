"""An agent whose connection to the controller breaks: everything arrives once, in order, in both directions."""

from __future__ import annotations

import itertools
import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from relay import Relay
from test_cluster import Never, boot_of

from paceline.launch import messages
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.line import Line, PassedOn
from paceline.launch.cluster.remote import Agents, RemoteHost
from paceline.wire import store as say
from paceline.wire.channel import Sequence

MANY = 60
BREAKS = (5, 23, 40)


@pytest.fixture
def agents() -> Iterator[Agents]:
    found = Agents(1)
    yield found
    found.close()


@pytest.mark.parametrize("back", [False, True])
def test_messages_arrive_once_and_in_order(agents: Agents, tmp_path: Path, back: bool) -> None:
    """The agent's beats and the controller's go on meanwhile."""
    relay = Relay(agents.port)
    host = RemoteHost(HostSpec("a", 2), 0, 0, agents=agents, handle=Never(), record=tmp_path)
    line = Line(msgspec.structs.replace(boot_of(agents), port=relay.port))
    there: list[int] = []
    here: list[int] = []
    due = list(BREAKS)
    line.send(messages.Ended(0, 0))
    while not there:  # nobody hears the controller before the agent has said something
        there += [message.rank for message in host.expect() if isinstance(message, messages.Ended)]
        select.select([line.bell], [], [], 0.005)
    try:
        for number in itertools.count(1):
            if due and number >= due[0] and not relay.is_to_break:
                relay.break_off(back=back)
                due.pop(0)
            line.send(messages.Ended(number, 0) if number < MANY else wire.States())
            if number < MANY:
                host.say(wire.Where(number))
            select.select([line.bell], [], [], 0.005)
            there += [message.rank for message in host.expect() if isinstance(message, messages.Ended)]
            here += [message.rank for message in line.receive() if isinstance(message, wire.Where)]
            if there[-1:] == here[-1:] == [MANY - 1] and not due and not relay.is_to_break:
                break
    finally:
        line.close()
        relay.close()
    assert there == list(range(MANY))
    assert here == list(range(1, MANY))
    assert relay.broken == len(BREAKS)


@pytest.mark.parametrize("back", [False, True])
def test_a_request_to_the_store_is_done_once(agents: Agents, back: bool) -> None:
    relay = Relay(agents.port)
    passed_on = PassedOn(msgspec.structs.replace(boot_of(agents), port=relay.port), "127.0.0.1")

    def ask() -> list[object]:
        found = []
        for number in range(MANY):
            if number in BREAKS:
                relay.break_off(back=back)
            found.append(passed_on.do(say.Add("count", 1), [])[0])
        return found

    try:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(ask).result(60) == list(range(1, MANY + 1))
    finally:
        passed_on.close()
        relay.close()
    assert relay.broken == len(BREAKS)


def test_what_is_heard_is_not_kept() -> None:
    ours: Sequence[str] = Sequence()
    assert [ours.add(text) for text in "abc"] == [1, 2, 3]
    assert ours.accepts(1, 2)
    assert list(ours.unheard()) == [(3, "c")]
    assert not ours.accepts(1, 3)  # it has come before
    assert not ours.accepts(3, 3)  # one is missing
    assert ours.accepts(2, 3)
    assert list(ours.unheard()) == []
