"""`paceline run --on ray` on a real Ray: on this host, and on nodes in network namespaces. Skipped without Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import namespaces
import pytest
from namespaces import Hosts, why_not

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.10f}")
if "fail" in sys.argv:
    raise ValueError("a bad number")
"""


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    line = [sys.executable, "-m", "paceline", "run", "--on", "ray", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=200)


@needs_ray
@pytest.mark.slow
def test_the_same_numbers_and_then_a_failure(tmp_path: Path) -> None:
    found = typed(tmp_path, "-n", "2", "train.py")
    assert found.returncode == 0, found.stderr
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == plain.stdout
    failed = typed(tmp_path, "-n", "1", "train.py", "fail")
    assert failed.returncode == 1
    assert "ValueError: a bad number" in failed.stderr
    assert "Traceback (most recent call last):\n  File" in failed.stderr


@needs_ray
@pytest.mark.slow
def test_a_series_in_a_job_of_ray_needs_no_option(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(4)", "range(40)"))
    line = [
        sys.executable,
        "-m",
        "paceline",
        "scale",
        "-n",
        "1,2",
        "--repeat",
        "1",
        "--steps",
        "9",
        "--json",
        "train.py",
    ]
    job = os.environ | {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
    found = subprocess.run(line, cwd=tmp_path, env=job, capture_output=True, text=True, timeout=200)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert [point["workers"] for point in told["points"]] == [1, 2]
    assert told["same_numbers"]["same"]
    for trial in (tmp_path / told["record"] / "trials").iterdir():
        assert json.loads((trial / "run.json").read_text())["topology"]["options"] == ["--on", "ray"]


@needs_ray
@pytest.mark.parametrize(
    ("address", "told"), [("127.0.0.1:1", "no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1"), ("x", "cannot use")]
)
def test_a_wrong_address_is_told_of_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    found = typed(tmp_path, "train.py")
    assert found.returncode == 1
    assert told in found.stderr
    assert "Traceback" not in found.stderr


@dataclass(frozen=True)
class Nodes:
    """A Ray cluster of several nodes, each in a network namespace."""

    hosts: Hosts
    folder: Path

    def start(self, number: int) -> subprocess.Popen[bytes]:
        """A node of two cores; node 0 is the head. Returns at once."""
        role = ["--head", "--port=6379"] if number == 0 else [f"--address={self.hosts.addresses[0]}:6379"]
        line = [
            *("ip", "netns", "exec", self.hosts.spaces[number], "unshare", "--uts", "sh", "-c"),
            f'hostname node{number}; exec "$@"',
            *("sh", str(Path(sys.executable).parent / "ray"), "start"),
            *(f"--node-ip-address={self.hosts.addresses[number]}", "--num-cpus=2", "--object-store-memory=100000000"),
            *(f"--temp-dir={self.folder}/{number}", "--include-dashboard=true", "--disable-usage-stats", "--block"),
        ]
        log = (self.folder / f"{number}.log").open("wb")
        with log:
            return subprocess.Popen([*line, *role], stdout=log, stderr=log, start_new_session=True)

    def typed(self, *words: str) -> list[str]:
        """A command line on the head."""
        space, address = self.hosts.spaces[0], f"RAY_ADDRESS={self.hosts.addresses[0]}:6379"
        return ["ip", "netns", "exec", space, "env", address, sys.executable, *words]

    def up(self) -> int:
        """The number of nodes that live."""
        text = "import ray; ray.init('auto', logging_level='ERROR'); print(sum(n['Alive'] for n in ray.nodes()))"
        said = subprocess.run(self.typed("-c", text), capture_output=True, text=True, timeout=100).stdout.split()
        return int(said[-1]) if said and said[-1].isdigit() else 0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if why := why_not(over_ssh=False):
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="ray") as name, namespaces.hosts(tmp_path, 2, over_ssh=False) as hosts:
        found = Nodes(hosts, Path(name))  # Ray puts sockets there, whose paths must be short
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(2):
                started.append(found.start(number))
                until(lambda number=number: found.up() > number, started)
            yield found
        finally:
            for number in range(2):
                kill(hosts, number)
            for process in started:
                process.wait(20)


def kill(hosts: Hosts, number: int) -> None:
    for pid in hosts.pids(number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def until(is_so: Callable[[], bool], started: Sequence[subprocess.Popen[bytes]] = ()) -> None:
    by = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < by
        assert all(process.poll() is None for process in started)
        time.sleep(0.1)


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_several_nodes_have_the_same_numbers_and_a_lost_one_is_named(tmp_path: Path, nodes: Nodes) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    line = nodes.typed("-m", "paceline", "run", "--on", "ray", "-n", "4", "--quiet")
    found = subprocess.run([*line, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (found.returncode, found.stdout) == (0, plain.stdout), found.stderr
    told = json.loads(next((tmp_path / "paceline-runs").glob("*/run.json")).read_text())
    assert [host["name"] for host in told["topology"]["hosts"]] == nodes.hosts.addresses
    text = SCRIPT.replace("range(4)", "range(100_000)").replace(':.10f}")', ':.10f}", flush=True)')
    (tmp_path / "long.py").write_text(text)
    running = subprocess.Popen(
        [*line, "long.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    running.stdout.readline()
    kill(nodes.hosts, 1)
    said = running.communicate(timeout=100)[1]
    assert running.returncode == 1
    assert f"The host {nodes.hosts.addresses[1]}, with workers" in said
    assert "is lost" in said
    assert "Traceback" not in said


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_error_says_what_to_install(tmp_path: Path) -> None:
    found = typed(tmp_path, "train.py")
    assert found.returncode == 2
    assert "pip install ray" in found.stderr
