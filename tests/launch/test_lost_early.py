"""Elastic runs: whenever and however a worker ends, the others go on, and the script's files are written."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from launched import Launched, Play

from paceline.launch import messages
from paceline.launch.watch import Watch

TRAINING = """
import os, torch
from paceline.settings import of_this_process
torch.manual_seed(0)
with open({folder!r} + "/begun.txt", "w") as file:
    file.write("begun")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    if step == 3 and of_this_process().rank == {leaves}:
        os._exit(0)
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{{loss.item():.6f}}", flush=True)
torch.save(model.state_dict(), {folder!r} + "/model.pt")
"""


def run(play: Play, folder: Path, leaves: int | None = None) -> Launched:
    """Three workers, of which one may leave in the middle."""
    folder.mkdir()
    launched = play(TRAINING.format(folder=str(folder), leaves=leaves), workers=3, elastic=1)
    assert launched.outcome.exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"begun.txt", "model.pt"}
    assert sum("the run goes on with 2 workers" in notice for notice in launched.notices) == 1
    return launched


def test_worker_0_is_killed_as_soon_as_it_is_forked(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Watch._from_zygote

    def kill(watch: Watch, host: Any, message: Any) -> None:
        if isinstance(message, messages.Forked):
            os.kill(message.pids[0], signal.SIGKILL)
        plain(watch, host, message)

    monkeypatch.setattr(Watch, "_from_zygote", kill)
    assert len(run(play, tmp_path / "files").output().split()) == 6


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_leaves_with_code_0_is_gone(play: Play, tmp_path: Path, rank: int) -> None:
    launched = run(play, tmp_path / "files", leaves=rank)
    assert len(launched.output().split()) == 6
    assert any(f"Worker {rank} ended in the middle of the script" in notice for notice in launched.notices)
