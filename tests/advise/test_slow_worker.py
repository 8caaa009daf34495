"""A worker that is made slow on purpose is named, with the right cause: real runs of two workers.

On a played clock, which a busy machine cannot disturb; and with real time, which it can."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from played import CLOCK

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Finding
from paceline.advise.rules import imbalance
from paceline.errors import RecordError
from paceline.launch import Zygote, launch
from paceline.record import read_run
from paceline.settings import RunSettings

TROUBLE = 0.03  # seconds a step: a busy machine makes waits of its own, which must stay below it
REAL = "from time import sleep as spend\n"
SCRIPT = f"""
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from paceline.settings import of_this_process

cause, since, rank, seen = sys.argv[1], int(sys.argv[2]), of_this_process().rank, [0, 0]

def trouble(here):
    seen[here == "input"] += 1
    if cause == here and rank == 1 and seen[here == "input"] > since:
        spend({TROUBLE})

class Data(Dataset):
    def __len__(self):
        return 4000
    def __getitems__(self, indices):
        trouble("input")
        return [(torch.full((8,), i / 800), torch.tensor([float(i % 3)])) for i in indices]

class Model(torch.nn.Linear):
    def forward(self, x):
        spend(0.002)
        trouble("compute")
        if cause == "throttled":
            until = time.process_time() + 0.01  # of work, however long that takes
            while time.process_time() < until:
                pass
        return super().forward(x)

torch.manual_seed(0)
model = Model(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Data(), batch_size=8):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def find(
    zygote: Zygote, folder: Path, cause: str, *, steps: int = 16, since: int = 0, clock: str = CLOCK
) -> Finding | None:
    script, record = folder / "train.py", folder / "record"
    script.write_text(clock + SCRIPT)
    settings = RunSettings(script=str(script), arguments=(cause, str(since)), workers=2, threads=1, steps=steps)
    with Throttled(record) if cause == "throttled" else Nothing():
        outcome = launch(settings, zygote=zygote, record=record, on_event=lambda event: None)
    assert outcome.exit_code == 0, outcome.message
    return imbalance.find(Evidence.of_record(record))


class Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Throttled(Nothing):
    """Worker 1 gets a twentieth of its core: stopped and continued, as a control group with a quota does."""

    def __init__(self, record: Path) -> None:
        self.record, self.over = record, threading.Event()
        self.thread = threading.Thread(target=self.throttle)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def throttle(self) -> None:
        pid = None
        while not self.over.is_set():
            try:
                pid = pid or next(worker.pid for worker in read_run(self.record).workers if worker.rank == 1)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.1)
                os.kill(pid, signal.SIGCONT)
            except (RecordError, StopIteration, ProcessLookupError):
                pass
            time.sleep(0.005)


# `test_since_when` has a worker that computes slowly.
@pytest.mark.parametrize("cause", ["input", pytest.param("compute", marks=pytest.mark.slow)])
def test_the_slow_worker_is_named_with_its_cause_and_its_seconds(zygote, tmp_path, cause):
    found = find(zygote, tmp_path, cause)
    assert found is not None
    told = {figure.name: figure.value for figure in found.evidence}
    assert (told["worker"], told["cause"]) == (1, cause)
    assert told["behind the others"] == pytest.approx(TROUBLE, abs=1e-6)
    assert "Worker 1" in found.title


def test_workers_of_equal_speed_are_not_named(zygote, tmp_path):
    assert find(zygote, tmp_path, "nothing") is None


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "named"), [("input", "input"), ("compute", "compute"), ("throttled", "compute")])
def test_the_slow_worker_is_named_in_real_time(zygote, tmp_path, cause, named):
    found = find(zygote, tmp_path, cause, clock=REAL)
    assert found is not None
    told = {figure.name: figure.value for figure in found.evidence}
    assert (told["worker"], told["cause"]) == (1, named)
    assert told["behind the others"] > 0.5 * TROUBLE
    assert "Worker 1" in found.title


def test_since_when(zygote, tmp_path):
    found = find(zygote, tmp_path, "compute", steps=40, since=25)
    assert found is not None
    told = {figure.name: figure.value for figure in found.evidence}
    assert told["worker"] == 1
    assert told["since step"] == 26  # that of the first slow call: calls which prove leave no trace in the script
