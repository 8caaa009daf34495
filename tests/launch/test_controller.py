"""A run through an agent: everything but the way to another host, which test_ssh_hosts.py takes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from launched import Launched
from test_cluster import boot_of

from paceline.launch import Zygote, launch
from paceline.launch.cluster import agent
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.controller import launch_on
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.kept_hosts import KeptHosts
from paceline.launch.cluster.remote import Agents
from paceline.record import read_run, read_steps
from paceline.settings import RunSettings

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}")
if "fail" in sys.argv:
    raise ValueError("a bad number")
"""


class InThreads:
    """A backend whose agents are threads of this process, with the tests' zygote."""

    patience = 60.0

    def __init__(self, zygote: Zygote, workers: int) -> None:
        self._zygote, self._workers, self.started = zygote, workers, 0

    def hosts(self) -> list[HostSpec]:
        return [HostSpec("here", self._workers)]

    def words(self) -> list[str]:
        return ["--hosts", "here"]

    def start_agent(self, host: HostSpec, variables: dict[str, str], secret_on_stdin: bytes) -> InThread:
        assert variables["PYTHONHASHSEED"].isdigit()
        self.started += 1
        return InThread(msgspec.json.decode(secret_on_stdin, type=wire.Boot), self._zygote)


class InThread:
    def __init__(self, boot: wire.Boot, zygote: Zygote) -> None:
        self._reads, self._writes = os.pipe()
        work = lambda: agent.attend(boot, self._reads, lambda: contextlib.nullcontext(zygote))  # noqa: E731
        self._thread = threading.Thread(target=work)
        self._thread.start()

    def ended(self) -> str | None:
        return None if self._thread.is_alive() else "its thread has ended"

    def kill(self, patience: float = 5.0) -> None:
        if self._writes >= 0:
            os.close(self._writes)
            self._thread.join()
            os.close(self._reads)
            self._writes = -1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def played(zygote: Zygote, folder: Path, *arguments: str, workers: int) -> Launched:
    launched = Launched(folder / "record")
    run = RunSettings(script="train.py", arguments=arguments, workers=workers)
    launched.outcome = launch_on(
        run, InThreads(zygote, workers), record=launched.record, on_event=launched.events.append
    )
    return launched


def test_an_agent_runs_its_workers_and_sends_the_record_home(zygote: Zygote, folder: Path) -> None:
    launched = played(zygote, folder, workers=2)
    assert launched.outcome.exit_code == 0, launched.outcome.message
    assert launched.output().split() == launched.log(1).split()
    assert len(launched.output().split()) == 4
    assert [len(read_steps(launched.record, rank)) for rank in range(2)] == [4, 4]
    assert [worker.rank for worker in read_run(launched.record).workers] == [0, 1]


SHARED = """
from paceline.settings import of_this_process
from paceline.wire.link import connect_store
print(connect_store(of_this_process()).add("runs", 1), flush=True)
"""


def test_runs_of_a_series_share_an_agent_and_no_store(zygote: Zygote, folder: Path) -> None:
    (folder / "shared.py").write_text(SHARED)
    backend = InThreads(zygote, 3)
    with KeptHosts(backend, None) as hosts:
        for number, workers in enumerate((1, 3, 2)):
            record = folder / f"record{number}"
            run = RunSettings(script="shared.py", workers=workers, staged=False)
            outcome = launch(run, zygote=hosts, record=record, on_event=lambda event: None)
            assert outcome.exit_code == 0, outcome.message
            counts = [int((record / f"log.rank{rank}.txt").read_text()) for rank in range(workers)]
            assert sorted(counts) == list(range(1, workers + 1))
    assert backend.started == 1


def test_a_series_starts_an_agent_anew_after_it_has_ended(zygote: Zygote, folder: Path) -> None:
    backend = InThreads(zygote, 1)
    run = RunSettings(script="train.py", workers=1)
    with KeptHosts(backend, None) as hosts:
        for number in range(2):
            outcome = launch(run, zygote=hosts, record=folder / f"record{number}", on_event=lambda event: None)
            assert outcome.exit_code == 0, outcome.message
            with hosts.crew(run) as crew:
                crew.hosts[0].destroy()
    assert backend.started == 2


def test_an_agent_whose_controller_is_silent_says_so(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent, "LOST", 0.5)
    agents = Agents(1)
    agents._suspended = True  # sends no heartbeat, and has not told of it
    started = InThread(boot_of(agents), zygote)
    started._thread.join()
    started.kill()
    agents.close()
    assert "it heard nothing of the host where the run was started" in capsys.readouterr().err


WRITES = """
import itertools, os, threading, torch
from paceline.settings import of_this_process
write = os.open  # bound here: the real one
print("begun", flush=True)
for number in itertools.count():
    os.close(write(f"{of_this_process().record}/{number}", os.O_CREAT | os.O_WRONLY))
"""


def test_an_agent_whose_controller_is_killed_leaves_nothing(folder: Path) -> None:
    """Though its workers write to their part of the record until their end."""
    (folder / "train.py").write_text(WRITES)
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "paceline", "run", "--hosts", "localhost:1", "--quiet", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "TMPDIR": str(folder / "tmp")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "begun\n"
        agents = psutil.Process(controller.pid).children(recursive=True)
        controller.kill()
        psutil.wait_procs(agents, timeout=60)
    assert not list((folder / "tmp").glob("pl-*"))


def test_a_failure_comes_home_with_its_lines(zygote: Zygote, folder: Path) -> None:
    launched = played(zygote, folder, "fail", workers=1)
    assert launched.outcome.exit_code == 1
    assert "ValueError: a bad number" in launched.outcome.message
    assert "on here failed" in launched.outcome.message
