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
print(os.popen("ls " + {folder!r}).read())  # another process sees the real files only
"""


def run(play: Play, folder: Path, leaves: int | None = None) -> Launched:
    """Three workers, of which one may leave in the middle."""
    folder.mkdir()
    launched = play(TRAINING.format(folder=str(folder), leaves=leaves), workers=3, elastic=1)
    assert launched.outcome.exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"begun.txt", "model.pt"}
    assert launched.output().split()[6:] == ["begun.txt", "model.pt"]
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
    run(play, tmp_path / "files")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_leaves_with_code_0_is_gone(play: Play, tmp_path: Path, rank: int) -> None:
    launched = run(play, tmp_path / "files", leaves=rank)
    assert any(f"Worker {rank} ended in the middle of the script" in notice for notice in launched.notices)


AT_EXIT = """
import atexit, torch

def main():
    import os, signal, time
    from paceline.wire import store as say
    from paceline.wire.link import link_of_this_process
    from paceline.settings import of_this_process
    rank, link = of_this_process().rank, link_of_this_process()

    def leave():
        link.ask(say.Add("at the end", 1))
        while not rank and link.ask(say.Add("at the end", 0))[0] < 3:
            time.sleep(0.005)
        if not rank:
            os.kill(os.getpid(), signal.SIGKILL)
        while not link.ask(say.Has([say.left_key(1)]))[0]:
            time.sleep(0.005)

    class Last:
        def __del__(self):
            leave()

    print(torch.nn.Linear(4, 1)(torch.ones(8, 4)).shape, flush=True)
    atexit.register(lambda: open({folder!r} + "/end.txt", "w").write("whole"))
    if {after}:
        return Last()
    atexit.register(leave)

last = main()
"""


@pytest.mark.parametrize("after", [False, True], ids=["in time", "too late"])
def test_worker_0_is_killed_when_the_others_have_come_to_the_end(play: Play, tmp_path: Path, after: bool) -> None:
    """In handlers that are called at exit the next worker writes the files still; after them, the run says so."""
    launched = play(AT_EXIT.format(folder=str(tmp_path), after=after), workers=3, elastic=1)
    if after:
        assert launched.outcome.exit_code == 1
        assert "what the script wrote at its end may be missing" in launched.outcome.message
    else:
        assert launched.outcome.exit_code == 0
        assert (tmp_path / "end.txt").read_text() == "whole"


ASKS = """
import os, signal, sys, torch
from paceline.settings import of_this_process
if of_this_process().rank == 0:
    os.read = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
print(sys.stdin.readlines(), sys.stdin.read(), torch.nn.Linear(4, 1)(torch.ones(8, 4)).shape, flush=True)
"""


def test_input_ends_with_worker_0(play: Play) -> None:
    """It is killed while it reads; the others do not wait for ever for what it would have read."""
    launched = play(ASKS, workers=3, elastic=1)
    assert launched.outcome.exit_code == 0, launched.outcome.message
    assert launched.output() == "[]  torch.Size([8, 1])\n"
