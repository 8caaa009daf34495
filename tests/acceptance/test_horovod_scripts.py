"""Horovod scripts, unchanged: `paceline run -n 2 train.py`, and `horovodrun -np 2 python train.py`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from paceline.record import read_run

SCRIPTS = Path(__file__).parent / "horovod_scripts"
DIGITS, BENCHMARK = str(SCRIPTS / "digits.py"), str(SCRIPTS / "synthetic_benchmark.py")
HOROVODRUN = [sys.executable, "-m", "paceline.cli.horovodrun.main"]
ENDLESS = """
import horovod.torch as hvd, torch
hvd.init()
open(f"begun{hvd.rank()}", "w").close()
while True:
    hvd.allreduce(torch.ones(3), name="again")
"""

Type = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def paceline_(tmp_path, typist) -> Type:
    """Types `paceline …` in an empty folder."""
    return partial(typist.type, tmp_path)


@pytest.fixture
def horovodrun(tmp_path, typist) -> Type:
    """Types `horovodrun …` in an empty folder."""
    return partial(typist.type, tmp_path, program="horovodrun")


def losses(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?:loss|accuracy) (\d+\.\d+)", printed)]


def test_losses_are_those_of_one_process_on_the_global_batch(paceline_: Type, tmp_path: Path) -> None:
    one = paceline_("run", "--quiet", "-n", "1", DIGITS, "--batch-size", "32", "--lr", "0.04", "--checkpoint", "one.pt")
    assert one.returncode == 0, one.stderr
    two = paceline_("run", "--quiet", "-n", "2", DIGITS)
    assert two.returncode == 0, two.stderr
    assert len(losses(one.stdout)) == 2 * (5 + 2)
    assert losses(two.stdout) == pytest.approx(losses(one.stdout), abs=2e-5)
    assert "rank 0 of 2 is done, digits.py" in two.stdout
    record = max((tmp_path / "paceline-runs").iterdir())
    assert "rank 1 of 2 is done" in (record / "log.rank1.txt").read_text(), "every rank speaks for itself"
    run = read_run(record)
    assert (run.settings["launch_as"], run.strategy, run.outcome.steps) == ("horovod", "script", 10)
    assert (tmp_path / "checkpoint-2.pt").exists()


def test_horovodrun_runs_it_too(horovodrun: Type, tmp_path: Path) -> None:
    done = horovodrun("-np", "2", "--output-filename", "out", "--fusion-threshold-mb", "1", "python", "-u", DIGITS)
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 2 * (5 + 2)
    assert "as horovod" in done.stderr
    assert "rank 1 of 2 is done" in (tmp_path / "out" / "rank.1" / "stdout").read_text()
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).settings["environment"] == [f"HOROVOD_FUSION_THRESHOLD={1 << 20}"]


def test_a_synthetic_benchmark_counts_all_workers(paceline_: Type) -> None:
    done = paceline_("run", "--quiet", "-n", "2", BENCHMARK)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Total samples/s on 2 workers: \d+", done.stdout)


def test_a_rank_that_raises_ends_the_run_with_its_traceback(paceline_: Type) -> None:
    done = paceline_("run", "-n", "2", DIGITS, "--fail-on", "1")
    assert done.returncode == 1
    assert "Worker 1" in done.stderr
    assert "OverflowError: rank 1 has had enough" in done.stderr
    assert f"{DIGITS}" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_wrong_flags_leave_no_record(horovodrun: Type, tmp_path: Path) -> None:
    done = horovodrun("-np", "2", "--fusion-treshold-mb", "1", "python", DIGITS)
    assert done.returncode == 2
    assert "Did you mean --fusion-threshold-mb?" in done.stderr
    assert not (tmp_path / "paceline-runs").exists()


@pytest.mark.slow
def test_an_interrupt_ends_all_workers(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = [*HOROVODRUN, "-np", "2", "python", "endless.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"begun{rank}").exists() for rank in range(2)):
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.stderr.close()
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.interrupted


DRIVER = """
import sys
import paceline.horovod as horovod

class Told:
    def __init__(self, rank, total):
        self.rank, self.total = rank, total

def work(factor, fail=False):
    import horovod.torch as hvd
    import torch
    hvd.init()
    if fail:
        raise OverflowError("too much")
    return Told(hvd.rank(), hvd.allreduce(torch.tensor([factor]), op=hvd.Sum).item())

if __name__ == "__main__":
    try:
        told = horovod.run(work, args=(1.5,), kwargs={"fail": "--fail" in sys.argv}, num_proc=2)
        print([(each.rank, each.total) for each in told])
    except RuntimeError as error:
        print(error)
"""


def drive(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, "driver.py", *arguments], cwd=folder, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "where the time went" not in done.stderr
    return done


def test_a_function_runs_on_several_workers_and_its_results_come_back(tmp_path: Path) -> None:
    assert drive(tmp_path).stdout == "[(0, 3.0), (1, 3.0)]\n"


@pytest.mark.slow  # tests/horovod/test_run_function.py has a launcher that fails
def test_a_function_that_raises_is_an_error_with_its_traceback(tmp_path: Path) -> None:
    done = drive(tmp_path, "--fail")
    assert "'work' failed on one of 2 workers (exit code 1)" in done.stdout
    assert "OverflowError: too much" in done.stderr
