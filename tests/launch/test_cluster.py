"""Parts of a run on several hosts, each by itself: lists of hosts, the store between agents, the record's way home."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import stranger
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.launch import messages
from paceline.launch.cluster import line as cluster_line
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.facts import Listeners, connect_all, interfaces
from paceline.launch.cluster.hosts import HostSpec, parse, read
from paceline.launch.cluster.line import Line, NoController, PassedOn
from paceline.launch.cluster.record_sync import RecordSync
from paceline.launch.cluster.remote import Agents, HostLostError, RemoteHost
from paceline.wire import store as say
from paceline.wire.channel import BEAT, Access


def test_hosts_as_they_are_typed(tmp_path: Path) -> None:
    assert parse("a:4, user@b.example:2,c") == [HostSpec("a", 4), HostSpec("user@b.example", 2), HostSpec("c", 1)]
    assert parse("[fe80::1]:3") == [HostSpec("fe80::1", 3)]
    (tmp_path / "hosts").write_text("# two racks\na slots=4\nb 2  # slow\nc:8 max_slots=9\n\nd\n")
    assert read(tmp_path / "hosts") == [HostSpec("a", 4), HostSpec("b", 2), HostSpec("c", 8), HostSpec("d", 1)]


@pytest.mark.parametrize("typed", ["", ",", "a:", "a:b", "a:4:4", "a b", "a:2,a:2", "a:0"])
def test_a_wrong_list_of_hosts_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--hosts"):
        parse(typed)


@given(st.lists(st.tuples(st.from_regex(r"[a-z][a-z0-9.-]{0,9}", fullmatch=True), st.integers(1, 99)), min_size=1))
def test_any_list_is_read_back(listed: list[tuple[str, int]]) -> None:
    hosts = [HostSpec(name, workers) for name, workers in dict(listed).items()]
    assert parse(",".join(map(str, hosts))) == hosts


def test_a_port_that_answers_and_one_that_does_not() -> None:
    listeners = Listeners(["127.0.0.1"])
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        places = [("127.0.0.1", "127.0.0.1", port) for port in (listeners.ports[0], closed.getsockname()[1])]
        reached = connect_all(places, 5.0)
    listeners.close()
    assert reached == ("", "Connection refused")
    assert all(not each.address.startswith("127.") for each in interfaces())


def test_an_agent_waits_until_strangers_have_left_the_controllers_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full port drops who comes, and the kernel of who comes tries again ever more rarely."""
    tries = []

    def try_all(places: list[tuple[str, str, int]], seconds: float) -> tuple[str, ...]:
        found = connect_all(places, 0.1)
        tries.append(found)
        while stranger_there and len(tries) == 2:  # they give up
            port.accept()[0].close()
            stranger_there.pop().close()
        return found

    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen(0)
        stranger_there = [socket.create_connection(port.getsockname())]
        monkeypatch.setattr(cluster_line, "connect_all", try_all)
        boot = wire.Boot(
            number=0,
            addresses=("127.0.0.1",),
            port=port.getsockname()[1],
            access=Access("", ""),
            script="",
            folder="",
        )
        assert cluster_line._reachable(boot) == "127.0.0.1"
    assert tries[0] == ("no answer",)
    assert tries[-1] == ("",)


class Never:
    """A handle on an agent that this process plays."""

    why: str | None = None

    def ended(self) -> str | None:
        return self.why

    def kill(self, patience: float = 0.0) -> None:
        pass


@pytest.fixture
def agents() -> Iterator[Agents]:
    found = Agents(1)
    yield found
    found.close()


def boot_of(agents: Agents, token: str | None = None, number: int = 0) -> wire.Boot:
    return wire.Boot(
        number=number,
        addresses=("127.0.0.1",),
        port=agents.port,
        access=agents.access._replace(token=token or agents.access.token),
        script="",
        folder="/",
    )


def until(host: RemoteHost, kind: type) -> object:
    while True:
        for message in host.expect():
            if isinstance(message, kind):
                return message


def test_what_an_agent_says_arrives_and_what_a_stranger_says_does_not(agents: Agents, tmp_path: Path) -> None:
    host = RemoteHost(HostSpec("a", 2), 0, 0, agents=agents, handle=Never(), record=tmp_path)
    stranger, line = Line(boot_of(agents, "guessed")), Line(boot_of(agents))
    stranger.send(wire.Trouble("let me in", ""))
    line.send(wire.Ready())
    assert until(host, wire.FromAgent) == wire.Ready()
    host.say(wire.Where(1))
    while not (heard := [message for message in line.receive() if not isinstance(message, wire.Alive)]):
        select.select([line.bell], [], [], 0.05)
    assert heard == [wire.Where(1)]
    for each in (stranger, line):
        each.close()


def test_strangers_take_no_memory_of_the_controller_and_are_counted(agents: Agents) -> None:
    line = Line(boot_of(agents))
    line.send(wire.Ready())
    heard(line, wire.Alive)
    assert agents.strangers == 0
    assert stranger.pour(agents.port) < stranger.ENOUGH
    by = time.monotonic() + 60
    while agents.strangers != 1:
        assert time.monotonic() < by
        time.sleep(0.01)
    line.close()


def heard(line: Line, kind: type) -> None:
    """Waits until an agent hears this of its controller."""
    by = time.monotonic() + 60
    while not any(isinstance(message, kind) for message in line.receive()):
        select.select([line.bell], [], [], 0.05)
        assert time.monotonic() < by, f"no {kind.__name__}"


def test_an_agent_hears_a_controller_that_is_busy_otherwise(agents: Agents) -> None:
    """Nobody takes what it has said: the loop that watches the run waits for a disk, or for a terminal."""
    line = Line(boot_of(agents))
    line.send(wire.Ready())
    for _ in range(3):
        heard(line, wire.Alive)
    line.close()


def test_a_controller_hears_an_agent_that_is_busy_otherwise(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop waits for a disk, or a driver. After `STUCK` seconds the host counts as silent."""
    line = Line(boot_of(agents))
    line.send(wire.Ready())
    beats = 0
    by = time.monotonic() + 60
    while beats < 3:
        agents.pump()
        while agents.inboxes[0]:
            beats += isinstance(agents.inboxes[0].popleft(), wire.States)
        assert time.monotonic() < by, "no heartbeat without the agent's loop"
        select.select([agents.bell], [], [], 0.05)
    monkeypatch.setattr(cluster_line, "STUCK", 0.0)
    while agents.silence(0) < 2 * BEAT + 1.0:
        assert time.monotonic() < by, "heartbeats of an agent whose loop does not go on"
        select.select([], [], [], 0.05)
    line.close()


def test_an_agent_is_told_when_its_controller_is_stopped_and_hears_it_again_when_it_goes_on(agents: Agents) -> None:
    line = Line(boot_of(agents))
    line.send(wire.Ready())
    heard(line, wire.Alive)
    agents.suspend(0.0)
    heard(line, wire.Suspended)
    assert line.receive() == []
    agents.resume()
    heard(line, wire.Alive)
    line.close()


def test_a_controller_that_cannot_be_reached_is_told_of(agents: Agents) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = wire.Boot(
            number=0,
            addresses=("127.0.0.1",),
            port=closed.getsockname()[1],
            access=agents.access,
            script="",
            folder="/",
        )
        with pytest.raises(NoController, match="Connection refused"):
            Line(nobody)


def test_an_agent_that_ends_is_a_lost_host(agents: Agents, tmp_path: Path) -> None:
    handle = Never()
    host = RemoteHost(HostSpec("a", 2), 0, 2, agents=agents, handle=handle, record=tmp_path)
    handle.why = "Connection closed."
    with pytest.raises(HostLostError, match="The host a, with workers 2 to 3, is lost: Connection closed"):
        list(host.expect())


def test_values_go_to_the_controller_and_descriptors_stay_on_the_host() -> None:
    agents = Agents(2)
    one, two = (PassedOn(boot_of(agents, number=number), "127.0.0.1") for number in range(2))
    try:
        assert one.do(say.Set("key", b"value"), []) == (None, [])
        assert two.do(say.Get("key"), []) == (b"value", [])
        assert [each.do(say.Add("count", 2), [])[0] for each in (one, two)] == [2, 4]
        reads, writes = os.pipe()
        one.do(say.Set("pipe", b""), [writes])
        assert one.do(say.Get("pipe"), []) == (b"", [writes])
        assert two.do(say.Get("pipe"), []) == (None, [])
        assert two.do(say.Has(["key", "count"]), []) == (1, [])
        os.close(reads)
    finally:
        for each in (one, two, agents):
            each.close()


def test_a_request_that_the_controller_cannot_answer_is_refused(agents: Agents) -> None:
    passed_on = PassedOn(boot_of(agents), "127.0.0.1")
    try:
        passed_on.do(say.Set("name", b"text"), [])
        with pytest.raises(ValueError, match="1 cannot be added to the key 'name'"):
            passed_on.do(say.Add("name", 1), [])
        assert passed_on.do(say.Get("name"), []) == (b"text", [])
        passed_on.stop()
        for _ in range(2):  # workers that ask when the run is over
            with pytest.raises(EOFError):
                passed_on.do(say.Get("name"), [])
    finally:
        passed_on.close()


def test_the_record_comes_home_and_nothing_else_is_written(agents: Agents, tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    for folder in (away / "scratch", home):
        folder.mkdir(parents=True, mode=0o700)
    host = RemoteHost(HostSpec("a", 1), 0, 0, agents=agents, handle=Never(), record=home)
    record_sync, line = RecordSync(away), Line(boot_of(agents))
    steps = away / "steps.rank0.jsonl"
    for text in ("one\n", "two\n"):
        with steps.open("a") as file:
            file.write(text)
        for grown in record_sync.grown():
            line.send(grown)
    (away / "trace.rank0.json.gz").write_bytes(os.urandom(3 << 20))
    (away / "scratch" / "file").write_text("left behind")
    for grown in (*record_sync.everything(), wire.Grown("../outside", b"x"), wire.Grown("run.json", b"x")):
        line.send(grown)
    line.send(messages.Swept())
    host.begin, host.swept = None, False
    while not host.swept:
        list(host.take({}))
    assert sorted(path.name for path in home.rglob("*")) == ["steps.rank0.jsonl", "trace.rank0.json.gz"]
    assert (home / "steps.rank0.jsonl").read_text() == "one\ntwo\n"
    assert (home / "trace.rank0.json.gz").read_bytes() == (away / "trace.rank0.json.gz").read_bytes()
    assert not (tmp_path / "outside").exists()
    line.close()
