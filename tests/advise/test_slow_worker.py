"""A worker that is made slow on purpose is named, with the right cause: real runs of two workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.advise import Evidence, Finding, imbalance
from paceline.errors import RecordError
from paceline.launch import Zygote, launch
from paceline.record import read_run
from paceline.settings import RunSettings

TROUBLE = 0.03  # seconds a step: a busy machine makes waits of its own, which must stay below it
SCRIPT = f"""
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

cause, since, rank, seen = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"]), [0, 0]

def trouble(here):
    seen[here == "input"] += 1
    if cause == here and rank == 1 and seen[here == "input"] > since:
        time.sleep({TROUBLE})

class Data(Dataset):
    def __len__(self):
        return 4000
    def __getitems__(self, indices):
        trouble("input")
        return [(torch.full((8,), i / 800), torch.tensor([float(i % 3)])) for i in indices]

class Model(torch.nn.Linear):
    def forward(self, x):
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


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote.start() as zygote:
        yield zygote


def find(zygote: Zygote, folder: Path, cause: str, *, steps: int = 16, since: int = 0) -> Finding | None:
    script, record = folder / "train.py", folder / "record"
    script.write_text(SCRIPT)
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


@pytest.mark.parametrize(
    ("cause", "named"),
    [("input", "input"), ("compute", "compute"), pytest.param("throttled", "compute", marks=pytest.mark.slow)],
)
def test_the_slow_worker_is_named_with_its_cause(zygote, tmp_path, cause, named):
    found = find(zygote, tmp_path, cause)
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
    assert 24 <= told["since step"] <= 28
