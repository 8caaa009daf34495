"""Runs on real hosts that are cut off and come back: unmodified scripts, and those with a saved state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from namespaces import Hosts

pytestmark = [
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not() or "there are hosts"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]
STEPS = 6000
SCRIPT = f"""
import sys, time, torch, paceline
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = paceline.Elastic(model, optimizer, step=0)
while state.step < {STEPS}:
    x = torch.randn(12, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(state.step, f"{{loss.item():.9f}}", flush=True)
    state.step += 1
    state.commit()
    time.sleep(0.02 * ("--slow" in sys.argv))
"""

HOROVOD = f"""
import sys, time, torch
import horovod.torch as hvd
hvd.init()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

@hvd.elastic.run
def train(state):
    while state.step < {STEPS}:
        x = torch.randn(12, 6, generator=torch.Generator().manual_seed(state.step))
        x = x[hvd.rank() * 12 // hvd.size() : (hvd.rank() + 1) * 12 // hvd.size()]
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(state.step, f"{{whole.item():.6f}}", flush=True)
        state.step += 1
        state.commit()
        time.sleep(0.02 * ("--slow" in sys.argv))

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 3) as found:
        yield found


UNMODIFIED = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(150):
    x = torch.randn(12, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.9f}", flush=True)
open("end", "w").close()
"""


def link(hosts: Hosts, how: str, number: int = 2) -> None:
    subprocess.run(["ip", "-n", hosts.spaces[number], "link", "set", "eth0", how], check=True)


def reported(lines: list[str]) -> dict[int, str]:
    """The loss of each step; a step that was made twice had the same."""
    found: dict[int, str] = {}
    for line in lines:
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss
    return found


@pytest.mark.parametrize(("discovered", "strategy"), [(False, "mirrored"), (True, "mirrored"), (False, "zero1")])
def test_a_run_goes_on_without_a_host_and_takes_it_back(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discovered: bool, strategy: str
) -> None:
    """From inside, or from the last save where the strategy allows no other way."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    (tmp_path / "now").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    which = ("--discover", f"cat {tmp_path}/now") if discovered else ("--hosts", hosts.spec(1))
    command = [sys.executable, "-m", "paceline", "run", *which, "--ssh", hosts.ssh, "--elastic", "2:3"]
    command += ["--save-every", "10", "--strategy", strategy, "--quiet", "train.py", "--slow"]
    inside = strategy == "mirrored"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 50:
                break
        link(hosts, "down")
        said = ""
        while ("goes on with 2 workers" if inside else "goes on from commit") not in said:
            said += process.stderr.readline()
        assert f"The host {hosts.names[2]}, with worker 2, is lost" in said
        link(hosts, "up")
        said = ""
        while "goes on from commit" not in said:
            said += process.stderr.readline()
        assert "starts again with all workers" in said
    finally:
        link(hosts, "up")
        process.terminate()
        rest, err = process.communicate(timeout=100)
    assert process.returncode == 75, err
    printed = reported(lines + rest.splitlines())
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True)
    expected = reported(plain.stdout.splitlines())
    assert len(printed) > 50
    assert printed == {step: expected[step] for step in range(len(printed))}
    if inside:  # no step was made again
        assert len(lines + rest.splitlines()) == len(printed)


def test_a_host_lost_before_the_first_save(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that cannot go on from inside begin again, on the hosts that are left."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    command = [sys.executable, "-m", "paceline", "run", "--hosts", hosts.spec(1), "--ssh", hosts.ssh, "--quiet"]
    command += ["--elastic", "2:3", "--save-every", "5000", "--strategy", "zero1", "train.py", "--slow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 10:
                link(hosts, "down")
            if sum(line.startswith("9 ") for line in lines) == 2:
                break
    finally:
        link(hosts, "up")
        process.terminate()
        _, err = process.communicate(timeout=100)
    assert "Nothing was saved yet: the run starts again from the beginning." in err
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True)
    expected = reported(plain.stdout.splitlines())
    printed = reported(lines)
    assert printed == {step: expected[step] for step in printed}


def test_a_horovod_script_goes_on_without_a_host(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(HOROVOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    command = [sys.executable, "-m", "paceline", "run", "--hosts", hosts.spec(1), "--ssh", hosts.ssh]
    command += ["--elastic", "2:3", "--save-every", "10", "--quiet", "train.py", "--slow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if len(lines) == 55:  # between two saves
                link(hosts, "down")
            if len(lines) == 150:
                break
    finally:
        link(hosts, "up")
        process.terminate()
        _, err = process.communicate(timeout=100)
    assert f"The host {hosts.names[2]}, with worker 2, is lost" in err
    steps = [int(line.split()[0]) for line in lines]
    assert steps != list(range(len(steps)))  # some were made again
    reported(lines)


@pytest.mark.parametrize("lost", [2, 0])
def test_an_unmodified_script_goes_on_without_a_host(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """No step is made twice, and all numbers are those of one process, also if the host of worker 0 is lost."""
    (tmp_path / "train.py").write_text(UNMODIFIED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    command = [sys.executable, "-m", "paceline", "run", "--hosts", hosts.spec(1), "--ssh", hosts.ssh]
    process = subprocess.Popen(
        [*command, "--elastic", "2", "--quiet", "train.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        first = [process.stdout.readline() for _ in range(30)]
        link(hosts, "down", lost)
        rest, err = process.stdout.read(), process.stderr.read()  # `communicate` would leave out what was read ahead
        process.wait(60)
    finally:
        process.kill()
        link(hosts, "up", lost)
    assert process.returncode == 0, err
    assert f"The host {hosts.names[lost]}, with worker {lost}, is lost: it has not answered for 10 s" in err
    assert "the run goes on with 2 workers" in err
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True)
    assert "".join(first) + rest == plain.stdout
    assert (tmp_path / "end").exists()


# Each step ends with a line in a file, some time after the last message to the other workers: long after it in the step
# in which the host is frozen.
WRITING = """
import time, torch
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
table = open("table.csv", "w")
for step in range(200):
    x = torch.randn(12, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 20:
        open("now", "w").close()
    time.sleep(2.0 if step == 20 else 0.05)
    with open("log.txt", "a") as log:
        log.write(f"{step}\\n")
    table.write(f"{step},{loss.item():.9f}\\n")
    print(step, f"{loss.item():.9f}", flush=True)
table.close()
"""
HEARTBEAT = 10.0  # seconds of silence after which a host is lost
SLOW = 3.0  # seconds that a busy machine may add


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_host_that_was_frozen_and_thawed_finds_that_it_is_out(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: int
) -> None:
    """The others go on soon; when it is thawed, it ends, prints nothing and writes to no file, though it shares the
    disk."""
    folders = [tmp_path / name for name in ("run", "plain")]
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(WRITING)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    two = ",".join(f"{name}:2" for name in hosts.names[:2])
    command = [sys.executable, "-m", "paceline", "run", "--hosts", two, "--ssh", hosts.ssh, "--elastic", "2", "--quiet"]
    process = subprocess.Popen(
        [*command, "train.py"], cwd=folders[0], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    stopped: list[int] = []
    try:
        lines = [process.stdout.readline() for _ in range(20)]
        while not (folders[0] / "now").exists():
            assert process.poll() is None
        stopped = hosts.pids(frozen)
        assert len(stopped) >= 4  # agent, zygote, workers
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        at = time.monotonic()
        said = process.stderr.readline()
        lines += [process.stdout.readline() for _ in range(20)]  # of which some may have been on their way
        took = time.monotonic() - at - 19 * 0.05
        assert f"The host {hosts.names[frozen]}, with workers" in said
        assert "the run goes on with 2 workers" in said
        assert took < HEARTBEAT + 1.0 + SLOW
        for pid in reversed(stopped):  # workers before their agent
            os.kill(pid, signal.SIGCONT)
        by = time.monotonic() + 20
        while hosts.processes()[hosts.names[frozen]] and time.monotonic() < by:
            time.sleep(0.05)
        assert hosts.processes()[hosts.names[frozen]] == []
        assert process.poll() is None  # it ended by itself, not with the run
        rest, err = process.stdout.read(), process.stderr.read()  # `communicate` would leave out what was read ahead
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.poll() is None and sys.exception() is not None:
            process.kill()
        process.communicate()
    assert process.returncode == 0, err
    expected = subprocess.run([sys.executable, "train.py"], cwd=folders[1], capture_output=True, text=True, check=True)
    assert "".join(lines) + rest == expected.stdout
    for name in ("log.txt", "table.csv"):
        assert (folders[0] / name).read_text() == (folders[1] / name).read_text()
