"""Unmodified scripts on several hosts: workers and whole hosts are lost, and every later number is that of one process.

Two agents on this machine are two hosts to a run. Real hosts, with a network between them, are in
tests/launch/test_hosts_come_and_go.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from plain import PlainPython
from test_elastic import AT_A_PLACE, NONE, TRAIN
from test_lasting_runs import TRAIN as LASTING
from typist import Typist

from paceline.settings import RunSettings

pytestmark = pytest.mark.timeout(200)
HOSTS = "localhost:2,127.0.0.1:2"
STEPS = 120
LONG = f"""
import torch
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range({STEPS}):
    x = torch.randn(12, 6)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{{loss.item():.9f}}", flush=True)
"""


def alone(plain: PlainPython, folder: Path, script: str) -> str:
    """What the script prints in plain Python."""
    (folder / "plain.py").write_text(script)
    return plain.printed(folder, "plain.py")


@pytest.mark.parametrize(
    ("place", "ranks", "times"),
    [
        # In the default run, connections break meanwhile: see below.
        pytest.param("backward", [1], 4, marks=pytest.mark.slow),
        pytest.param("backward", [0], 4, marks=pytest.mark.slow),
        pytest.param("forward", [3], 6, marks=pytest.mark.slow),
        pytest.param("saving", [0], 1, marks=pytest.mark.slow),
        pytest.param("evaluation", [2], 2, marks=pytest.mark.slow),
        pytest.param("before the step", [1], 1, marks=pytest.mark.slow),
        pytest.param("backward", [0, 1], 4, marks=pytest.mark.slow),
        pytest.param("loss", [0, 2, 3], 2, marks=pytest.mark.slow),
    ],
)
def test_a_worker_killed_on_one_of_two_hosts_changes_no_number(
    typist: Typist, plain: PlainPython, tmp_path: Path, place: str, ranks: list[int], times: int
) -> None:
    expected = alone(plain, tmp_path, TRAIN.format(fault=NONE))
    for name in ("log.csv", "model0.pt", "model1.pt"):
        (tmp_path / name).unlink()
    (tmp_path / "train.py").write_text(TRAIN.format(fault=AT_A_PLACE.format(place=place, ranks=ranks, times=times)))
    done = typist.type(tmp_path, "run", "--hosts", HOSTS, "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert done.stderr.count("the run goes on with") == len(ranks)
    assert (tmp_path / "log.csv").read_text() == "1\n2\n3\n4\n5\n6\n"
    assert {path.name for path in tmp_path.iterdir()} >= {"model0.pt", "model1.pt"}
    assert not (tmp_path / "model.tmp").exists()


# A worker kills itself at a moment: at a place of the script, or before it sends a message, of this number.
AT_A_MOMENT = """
from paceline.comm.elastic_channel import Letters
from paceline.settings import of_this_process
met = {{"place": 0, "letter": 0}}
def meet(kind):
    met[kind] += 1
    if of_this_process().rank == {rank} and met[{kind!r}] == {number} and kind == {kind!r}:
        os.kill(os.getpid(), signal.SIGKILL)
def here(place):
    meet("place")
def post(*args, plain=Letters.post, **kwargs):
    meet("letter")
    return plain(*args, **kwargs)
Letters.post = post
"""
MOMENTS = {"place": 30, "letter": 1100}  # that each worker comes to, at least


def moment(seed: int) -> tuple[int, str, int]:
    """A worker, and where it is killed."""
    chance = random.Random(seed)
    kind = ("letter", "place")[seed % 2]
    return chance.randrange(4), kind, chance.randint(1, MOMENTS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_killed_at_a_random_moment_changes_no_number(
    typist: Typist, plain: PlainPython, tmp_path: Path, seed: int
) -> None:
    expected = alone(plain, tmp_path, TRAIN.format(fault=NONE))
    rank, kind, number = moment(seed)
    (tmp_path / "train.py").write_text(TRAIN.format(fault=AT_A_MOMENT.format(rank=rank, kind=kind, number=number)))
    done = typist.type(tmp_path, "run", "--hosts", HOSTS, "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert f"Worker {rank} was killed by SIGKILL (signal 9); the run goes on with 3 workers" in done.stderr
    assert (tmp_path / "log.csv").read_text() == "1\n2\n3\n4\n5\n6\n"


@pytest.mark.parametrize("where", [("-n", "3"), pytest.param(("--hosts", HOSTS), marks=pytest.mark.slow)])
def test_a_worker_killed_between_a_large_output_and_its_loss(
    typist: Typist, plain: PlainPython, tmp_path: Path, where: tuple[str, ...]
) -> None:
    """In other runs such an output stays sharded up to the loss."""
    script = TRAIN.replace("nn.Linear(96, 10)", "nn.Linear(96, 2000)")
    assert RunSettings(script="").gather_below < 20 * 2000 * 8
    expected = alone(plain, tmp_path, script.format(fault=NONE))
    (tmp_path / "train.py").write_text(script.format(fault=AT_A_PLACE.format(place="loss", ranks=[1], times=3)))
    done = typist.type(tmp_path, "run", *where, "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert done.stderr.count("the run goes on with") == 1


# Two workers break all their connections to others, again and again.
BREAKING = """
import socket
from paceline.settings import of_this_process
PLACES = ("loss", "backward")
from collections import deque
broken = deque()  # no number, by which the model may branch
def here(place):
    global broken
    for name in os.listdir("/proc/self/fd") if of_this_process().rank in (1, 2) and place in PLACES else ():
        try:
            descriptor = os.dup(int(name))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        with found:
            try:
                if found.family == socket.AF_INET and found.getpeername():
                    found.shutdown(socket.SHUT_RDWR)
                    broken.append(1)
            except OSError:
                pass
import atexit
atexit.register(lambda: os.write(2, f"{len(broken)} broken\\n".encode()))
"""


def test_a_worker_killed_while_connections_break_changes_no_number(
    typist: Typist, plain: PlainPython, tmp_path: Path
) -> None:
    """On one of two hosts. The connections are made again, and what was on its way is sent again."""
    expected = alone(plain, tmp_path, TRAIN.format(fault=NONE))
    for name in ("log.csv", "model0.pt", "model1.pt"):
        (tmp_path / name).unlink()
    killing = AT_A_PLACE.format(place="backward", ranks=[1], times=4).replace("def here", "def kill")
    breaking = BREAKING.replace("    global broken\n", "    global broken\n    kill(place)\n")
    (tmp_path / "train.py").write_text(TRAIN.format(fault=killing + breaking))
    done = typist.type(tmp_path, "run", "--hosts", HOSTS, "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert done.stderr.count("the run goes on with") == 1
    (record,) = (tmp_path / "paceline-runs").iterdir()
    assert int((record / "log.rank2.txt").read_text().split()[-2]) > 8  # connections were broken
    assert (tmp_path / "log.csv").read_text() == "1\n2\n3\n4\n5\n6\n"
    assert {path.name for path in tmp_path.iterdir()} >= {"model0.pt", "model1.pt"}
    assert not (tmp_path / "model.tmp").exists()


@pytest.mark.slow
def test_connections_that_break_change_no_number(typist: Typist, plain: PlainPython, tmp_path: Path) -> None:
    """No worker is lost: the connections are made again, and what was on its way is sent again."""
    expected = alone(plain, tmp_path, TRAIN.format(fault=NONE))
    (tmp_path / "train.py").write_text(TRAIN.format(fault=BREAKING))
    done = typist.type(tmp_path, "run", "--hosts", HOSTS, "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert "goes on with" not in done.stderr
    (record,) = (tmp_path / "paceline-runs").iterdir()
    assert int((record / "log.rank1.txt").read_text().split()[-2]) > 8  # connections were broken


@pytest.mark.slow
def test_a_worker_killed_on_a_host_is_replaced_at_a_commit(typist: Typist, plain: PlainPython, tmp_path: Path) -> None:
    """No sample is lost or repeated, and no line printed twice."""
    expected = alone(plain, tmp_path, LASTING)
    (tmp_path / "train.py").write_text(LASTING)
    done = typist.type(tmp_path, "run", "--hosts", HOSTS, "--elastic", "1:4", "train.py", "7:3")
    assert done.returncode == 0, done.stderr
    assert "Worker 3 was killed by SIGKILL (signal 9); the run goes on with 3 workers" in done.stderr
    assert done.stderr.count("starts again with all workers") == 1
    assert "goes on from commit" in done.stderr
    assert done.stdout == expected


@pytest.mark.slow
@pytest.mark.parametrize("host", [0, 1])
def test_a_host_whose_agent_is_killed_is_done_without(plain: PlainPython, tmp_path: Path, host: int) -> None:
    (tmp_path / "train.py").write_text(LONG)
    command = [sys.executable, "-m", "paceline", "run", "--hosts", HOSTS, "--elastic", "2", "--quiet", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        printed = [run.stdout.readline() for _ in range(20)]
        agents = [
            child
            for child in psutil.Process(run.pid).children(recursive=True)
            if "paceline.launch.cluster.agent" in child.cmdline()
        ]
        os.kill(sorted(agents, key=lambda agent: agent.pid)[host].pid, signal.SIGKILL)
        printed += run.stdout.readlines()
        said = run.stderr.read()
    assert run.returncode == 0, said
    workers = ("0 to 1", "2 to 3")[host]
    assert f"with workers {workers}, is lost" in said
    assert "the run goes on with 2 workers" in said
    assert "".join(printed) == alone(plain, tmp_path, LONG)


@pytest.mark.slow
def test_too_few_workers_on_the_other_host_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LONG.replace(str(STEPS), "100000"))
    command = [sys.executable, "-m", "paceline", "run", "--hosts", HOSTS, "--elastic", "3", "--quiet", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        agents = [
            child
            for child in psutil.Process(run.pid).children(recursive=True)
            if "paceline.launch.cluster.agent" in child.cmdline()
        ]
        os.kill(max(agent.pid for agent in agents), signal.SIGKILL)
        run.stdout.read()
        said = run.stderr.read()
    assert run.returncode == 1
    assert "with workers 2 to 3, is lost" in said


WITH_IMPORTS = """
import sys, time, torch
from paceline.wire import channel
from paceline.settings import of_this_process
"""
# Before its last steps, worker 1 plays a process that has found a port of its own: the run's key it does not know.
WITH_A_STRANGER = """
    if step == 4 and of_this_process().rank == 1:
        sys.path.insert(0, {tests!r})
        import stranger
        import psutil
        (own,) = {{each.laddr for each in psutil.Process().net_connections() if each.status == "LISTEN"}}
        assert stranger.pour(own.port, own.ip) < stranger.ENOUGH
        while getattr(channel, "strangers", lambda: 1)() < 1:
            time.sleep(0.01)
"""


def test_strangers_at_the_port_of_a_worker_are_told_of(typist: Typist, tmp_path: Path) -> None:
    script = LONG.replace(f"range({STEPS})", "range(8)").replace("import torch\n", WITH_IMPORTS, 1)
    tests = str(Path(__file__).parents[1])
    (tmp_path / "train.py").write_text(script + WITH_A_STRANGER.format(tests=tests))
    done = typist.type(tmp_path, "run", "--hosts", "localhost:1,127.0.0.1:1", "--elastic", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert (
        "Strangers: 1 connection to the ports of this run came from processes that do not have its key" in done.stderr
    )
