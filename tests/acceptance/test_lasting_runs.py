"""Runs that are told to end, that fail, and that lose workers: with a paceline.Elastic state no sample is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from plain import PlainPython
from typist import Typist

TRAIN = """
import os, pathlib, signal, sys, time
import torch, paceline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from paceline.settings import of_this_process

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.arange(60), torch.randn(60, 5), torch.randn(60, 1))
model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
loader = DataLoader(data, batch_size=6, shuffle=True)
state = paceline.Elastic(model, optimizer, loader, schedule=schedule, epoch=0, seen=[])
while state.epoch < 3:
    for ids, x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        state.seen += ids.tolist()
        print(state.epoch, f"{loss.item():.9f}", *ids.tolist(), flush=True)
        while f"--wait={state.commits}" in sys.argv and not pathlib.Path("go-on").exists():
            time.sleep(0.01)
        for commits, rank in (map(int, word.split(":")) for word in sys.argv[1:] if ":" in word):
            mark = pathlib.Path(f"killed{commits}")
            if state.commits == commits and not mark.exists() and of_this_process().rank == rank:
                os.close(os.open(mark, os.O_CREAT))
                os.kill(os.getpid(), signal.SIGKILL)
        state.commit()
    state.epoch += 1
print("end", f"{sum(p.sum() for p in model.parameters()).item():.9f}", len(state.seen))
"""


@pytest.fixture(scope="module")
def undisturbed(plain: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "train.py").write_text(TRAIN)
    return plain.printed(folder, "train.py")


def told_to_end(
    typist: Typist, folder: Path, number: signal.Signals, commits: int, *options: str
) -> tuple[int, str, str]:
    """A run that gets the signal after this many commits: its exit code, what it printed, and what Paceline said."""
    (folder / "train.py").write_text(TRAIN)
    run = typist.begin(folder, "run", *options, "--quiet", "train.py", f"--wait={commits}")
    printed = [run.stdout.readline() for _ in range(commits + 1)]
    run.send_signal(number)
    (folder / "go-on").touch()
    code, out, err = run.end()
    return code, "".join(printed) + out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_a_run_that_is_told_to_end_goes_on_later(
    typist: Typist, tmp_path: Path, undisturbed: str, number: signal.Signals
) -> None:
    code, printed, said = told_to_end(typist, tmp_path, number, 12, "-n", "2", "--save-every", "1h")
    assert code == 75, said
    assert "after the script's state was saved" in said
    assert printed.count("\n") < 30
    later = typist.type(tmp_path, "run", "-n", "3", "--resume", "auto", "train.py")
    assert later.returncode == 0, later.stderr
    assert printed + later.stdout == undisturbed
    # The end was saved, too: there is nothing left to do.
    again = typist.type(tmp_path, "run", "-n", "2", "--resume", "auto", "train.py")
    assert again.stdout == undisturbed.splitlines(keepends=True)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "sharded", "mesh(data=1,model=2)", "pipeline(stages=2)", "central"])
def test_a_state_is_saved_under_every_strategy(typist: Typist, tmp_path: Path, undisturbed: str, strategy: str) -> None:
    options = ("-n", "2", "--strategy", strategy, "--save-every", "3")
    code, printed, said = told_to_end(typist, tmp_path, signal.SIGTERM, 7, *options)
    assert code == 75, said
    later = typist.type(tmp_path, "run", "-n", "3", "--resume", "auto", "train.py")
    assert printed + later.stdout == undisturbed


def test_a_run_that_failed_starts_again_from_its_last_save(typist: Typist, tmp_path: Path, undisturbed: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = typist.type(tmp_path, "run", "-n", "2", "--save-every", "5", "--restarts", "2", "train.py", "7:0")
    assert done.returncode == 0, done.stderr
    assert "1 restart left" in done.stderr
    assert "goes on from commit 5" in done.stderr
    expected = undisturbed.splitlines(keepends=True)
    assert done.stdout == "".join([*expected[:8], *expected[5:]])


def test_lost_workers_are_replaced_at_a_commit(typist: Typist, tmp_path: Path, undisturbed: str) -> None:
    """No sample is lost or repeated, and no line printed twice."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = typist.type(tmp_path, "run", "-n", "3", "--elastic", "1:3", "train.py", "7:0", "15:0")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Worker 0 was killed") == 2
    assert done.stderr.count("starts again with all workers") == 2
    assert done.stdout == undisturbed


def test_a_script_that_gives_up_does_not_save_half_a_step(typist: Typist, tmp_path: Path, undisturbed: str) -> None:
    (tmp_path / "train.py").write_text(
        TRAIN.replace(
            "        optimizer.step()\n",
            '        if state.commits == 7 and "--give-up" in sys.argv:\n'
            "            sys.exit(3)\n        optimizer.step()\n",
        )
    )
    first = typist.type(tmp_path, "run", "-n", "2", "--save-every", "5", "train.py", "--give-up")
    assert first.returncode == 3
    later = typist.type(tmp_path, "run", "-n", "2", "--resume", "auto", "train.py")
    expected = undisturbed.splitlines(keepends=True)
    assert first.stdout == "".join(expected[:7])
    assert later.stdout == "".join(expected[5:])


def test_a_state_that_would_be_replaced_is_told(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for told in (False, True):
        done = typist.type(tmp_path, "run", "-n", "1", "--save-every", "1h", "train.py")
        assert ("holds the state of an earlier run" in done.stderr) is told


def test_a_save_without_a_state_is_told(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    done = typist.type(tmp_path, "run", "-n", "1", "--save-every", "10m", "train.py")
    assert done.returncode == 0
    assert "Nothing was saved" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--save-every", "soon"), "--save-every soon: not a time"),
        (("--save-every", "0"), "nothing would be saved"),
        (("--resume", "nowhere"), "there is no saved state"),
        (("--elastic", "two"), "not a number of workers"),
        (("--elastic", "3:2"), "not a number of workers"),
        (("--elastic", "1:4"), "the run has 2 workers"),
    ],
)
def test_wrong_options_are_said_at_once(typist: Typist, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = typist.type(tmp_path, "run", "-n", "2", *options, "train.py")
    assert done.returncode == 2
    assert said in done.stderr


def test_without_paceline_run_a_state_does_nothing(tmp_path: Path, undisturbed: str) -> None:
    assert undisturbed.count("\n") == 31
    assert undisturbed.endswith(" 180\n")
