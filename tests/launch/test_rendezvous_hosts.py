"""The same command on hosts with networks of their own, which meet at one of them: no ssh, the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from namespaces import Hosts
from test_hosts_come_and_go import UNMODIFIED
from test_rendezvous import SECRET, free_port

pytestmark = [
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not() or "there are hosts"),
    pytest.mark.timeout(200),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 2) as found:
        yield found


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One of each host, and one of plain Python."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    found = [tmp_path / name for name in ("a", "b", "plain")]
    for folder in found:
        folder.mkdir()
        (folder / "train.py").write_text(UNMODIFIED)
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o600)
    return found


def typed(hosts: Hosts, number: int, port: int, folder: Path, *options: str) -> subprocess.Popen[str]:
    line = ["ip", "netns", "exec", hosts.spaces[number], sys.executable, "-m", "paceline", "run"]
    line += ["--rendezvous", f"{hosts.addresses[0]}:{port}", "--nodes", "2", "-n", "4", "--secret", "secret"]
    line += [*options, "--quiet", "train.py"]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def plain(folder: Path) -> str:
    return subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("first", [0, 1])
def test_the_same_numbers_whoever_comes_first(hosts: Hosts, folders: list[Path], first: int) -> None:
    port = free_port()
    both = {number: typed(hosts, number, port, folders[number]) for number in (first, 1 - first)}
    said = {number: process.communicate(timeout=100) for number, process in both.items()}
    assert [process.returncode for process in both.values()] == [0, 0], said
    assert said[0][0] == plain(folders[2])
    assert said[1][0] == ""
    assert (folders[0] / "end").exists()
    assert not (folders[1] / "end").exists()  # one voice
    assert hosts.processes() == {name: [] for name in hosts.names}


def test_the_controllers_host_goes_on_without_the_other_one(hosts: Hosts, folders: list[Path]) -> None:
    port = free_port()
    controller, member = (typed(hosts, number, port, folders[number], "--elastic", "2") for number in (0, 1))
    assert controller.stdout is not None
    assert controller.stderr is not None
    lines = [controller.stdout.readline() for _ in range(20)]
    for pid in hosts.pids(1):
        os.kill(pid, signal.SIGKILL)
    member.communicate(timeout=60)
    rest, err = controller.stdout.read(), controller.stderr.read()  # `communicate` would leave out what was read ahead
    controller.communicate(timeout=60)
    assert controller.returncode == 0, err
    assert "with workers 2 to 3, is lost" in err
    assert "the run goes on with 2 workers" in err
    assert "".join(lines) + rest == plain(folders[2])
    assert hosts.processes() == {name: [] for name in hosts.names}
