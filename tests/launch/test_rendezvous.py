"""Hosts that come by themselves: who may join, what they are told, and how they end."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.rendezvous import JoinRequest, Meeting, Member, derive, meet, parse_place, read_secret
from paceline.wire.channel import Access

SECRET = "a secret of many characters"
KEYS = derive(SECRET)
BOOT = wire.Boot(
    number=1, addresses=(), port=1, access=Access("", "only for the run"), script="train.py", folder="/there"
)
SCRIPT = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4 if "long" not in sys.argv else 100_000):
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", flush=True)
    if "long" in sys.argv:
        time.sleep(0.01)
if "fail" in sys.argv:
    sys.exit(7)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Played:
    """An agent that does nothing until it is killed."""

    started: list[tuple[list[str], wire.Boot]]

    def __init__(self, command: list[str], secret: bytes) -> None:
        self.started.append((command, msgspec.json.decode(secret, type=wire.Boot)))

    def ended(self) -> str | None:
        return None

    def kill(self, patience: float = 5.0) -> None:
        pass


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    Played.started = []
    monkeypatch.setattr("paceline.launch.cluster.rendezvous.ProcessAgent", Played)
    return Played


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as found:
        yield found


def asked(port: int, **more: Any) -> JoinRequest:
    more.setdefault("wait", 20.0)
    return JoinRequest(**({"host": "127.0.0.1", "port": port, "nodes": 3, "keys": KEYS, "workers": 4} | more))


def silent(text: str) -> None:
    pass


def join(threads: ThreadPoolExecutor, port: int, **more: Any) -> Future[int]:
    def joined() -> int:
        member = meet(asked(port, **more), silent)
        assert isinstance(member, Member)
        return member.serve()

    return threads.submit(joined)


def opened(port: int, **more: Any) -> Meeting:
    meeting = meet(asked(port, **more), silent)
    assert isinstance(meeting, Meeting)
    return meeting


def test_the_hosts_get_what_an_agent_needs_and_the_exit_code(threads: ThreadPoolExecutor, played: type[Played]) -> None:
    with opened(port := free_port(), name="a") as meeting:
        members = [join(threads, port, name=name, node=node) for name, node in (("c", 2), ("b", None))]
        hosts = meeting.hosts()
        assert hosts == [HostSpec("a", 2), HostSpec("b", 1), HostSpec("c", 1)]
        agent = meeting.start_agent(hosts[2], {"PYTHONHASHSEED": "5"}, msgspec.json.encode(BOOT))
        assert agent.ended() is None
        agent.kill(20.0)
        assert agent.ended() == "it was stopped"
        meeting.finish(7)
    assert [member.result(20) for member in members] == [7, 7]
    [(command, boot)] = played.started
    assert "PYTHONHASHSEED=5" in command
    assert boot == msgspec.structs.replace(BOOT, folder=os.getcwd())
    assert not any(BOOT.access.token in word for word in command)


def test_hosts_may_tell_their_own_number_of_workers(threads: ThreadPoolExecutor) -> None:
    with opened(port := free_port(), name="a", nodes=2, workers=None, own=2) as meeting:
        member = join(threads, port, name="a", nodes=2, workers=None, own=3)
        assert meeting.hosts() == [HostSpec("a#0", 2), HostSpec("a#1", 3)]
        meeting.finish(0)
    assert member.result(20) == 0


def test_a_host_with_another_secret_can_neither_join_nor_play_controller(threads: ThreadPoolExecutor) -> None:
    with opened(port := free_port(), wait=4.0) as meeting:
        stranger = join(threads, port, keys=derive("another secret of some length"))
        with pytest.raises(LaunchError, match="not with the secret of this host"):
            stranger.result(20)
        assert meeting._guests == {}


def test_the_public_key_alone_is_not_enough(threads: ThreadPoolExecutor) -> None:
    stolen = dataclasses.replace(KEYS, token="guessed")
    with opened(port := free_port(), wait=0.1) as meeting:
        stranger = join(threads, port, keys=stolen, wait=0.8)
        with pytest.raises(LaunchError, match="No controller"):
            stranger.result(20)
        with pytest.raises(LaunchError, match="1 of 3 hosts came to"):
            meeting.hosts()


def test_nobody_at_the_place() -> None:
    member = meet(asked(free_port(), node=1, wait=0.3), silent)
    assert isinstance(member, Member)
    with pytest.raises(LaunchError, match=r"No controller .* nothing answers there"):
        member.serve()


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({"same": {"arguments": "('3',)"}}, r"b has arguments \('3',\), and a has \(\)"),
        ({"node": 5}, "b has --node-rank 5, but there are 3 hosts"),
    ],
)
def test_a_host_that_was_started_otherwise_is_refused(
    threads: ThreadPoolExecutor, there: dict[str, Any], told: str
) -> None:
    same = {"arguments": "()"}
    with opened(port := free_port(), name="a", same=same) as meeting:
        member = join(threads, port, **{"name": "b", "same": same, **there})
        with pytest.raises(LaunchError, match=told):
            member.result(20)
        with pytest.raises(LaunchError, match=told):
            meeting.hosts()


@pytest.mark.parametrize("typed", ["", "a", "a:", ":5", "a:b", "a:0", "a:70000", "fe80::1:5"])
def test_a_wrong_place_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--rendezvous"):
        parse_place(typed)


def test_the_secret_comes_from_a_private_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="needs a secret"):
        read_secret(None)
    monkeypatch.setenv("PACELINE_SECRET", SECRET)
    assert read_secret(None) == SECRET
    assert "PACELINE_SECRET" not in os.environ
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="other accounts"):
        read_secret(file)
    file.chmod(0o600)
    assert read_secret(file) == SECRET
    file.write_text("short")
    with pytest.raises(UsageError, match="has 5 characters"):
        read_secret(file)
    assert derive(SECRET) == KEYS != derive(SECRET + ".")
    assert SECRET not in repr(KEYS)
    assert KEYS.private not in repr(KEYS)
    assert KEYS.token not in repr(KEYS)


# -- as a user types it -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    monkeypatch.setenv("PACELINE_SECRET", SECRET)
    return tmp_path


def typed(port: int, *arguments: str) -> subprocess.Popen[str]:
    options = ("--rendezvous", f"127.0.0.1:{port}", "--nodes", "2", "-n", "2")
    line = [sys.executable, "-m", "paceline", "run", *options, "train.py", *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("fail",), 7)])
def test_the_same_command_twice_is_one_run(folder: Path, arguments: tuple[str, ...], code: int) -> None:
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True).stdout
    port = free_port()
    both = [typed(port, *arguments) for _ in range(2)]
    said = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [code, code], said
    for told in (f"paceline: this host has joined the run at 127.0.0.1:{port}\n", "paceline: the run has ended"):
        assert [told in err for _, err in said].count(True) == 1  # the host that does not control the run
    assert sorted(out for out, _ in said) == ["", plain]
    assert len(list((folder / "paceline-runs").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_other_hosts_end_with_their_controller(folder: Path, end: int) -> None:
    port = free_port()
    controller = typed(port, "long")
    by_now = folder / "paceline-runs"
    while not by_now.exists() and controller.poll() is None:
        if socket.socket().connect_ex(("127.0.0.1", port)) == 0:
            break
    member = typed(port, "long")
    assert controller.stdout is not None
    assert controller.stdout.readline()
    controller.send_signal(end)
    _, err = member.communicate(timeout=60)
    controller.communicate(timeout=60)
    assert member.returncode == (1 if end == signal.SIGKILL else 128 + end), err
