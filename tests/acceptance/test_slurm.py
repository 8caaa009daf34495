"""Runs and jobs on a real Slurm of two nodes on this machine. Skipped, with the reason, where it cannot be started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from slurm_cluster import NoSlurm, Slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not() or "there is Slurm"),
    pytest.mark.timeout(300),
]

SCRIPT = """
import os, signal, sys, time, torch
from torch import nn
told = []
if "long" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
torch.manual_seed(0)
model = nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000 if "long" in sys.argv else 4):
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", flush=True)
    if "long" in sys.argv:
        open("running", "w").close()
        time.sleep(0.05)
        if told:
            open("saved", "w").close()
            sys.exit(75)
assert not any(name in os.environ for name in ("SLURM_PROCID", "SLURM_NTASKS"))
if "fail" in sys.argv:
    sys.exit(7)
"""

LASTING = """
import sys, time, torch, paceline
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = paceline.Elastic(model, optimizer, step=0)
while state.step < 40:
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(state.step, f"{loss.item():.12f}", flush=True)
    state.step += 1
    state.commit()
    if "slow" in sys.argv:
        time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    try:
        with slurm_cluster.slurm(tmp_path_factory.mktemp("slurm"), 2) as found:
            found.environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
            yield found
    except NoSlurm as error:
        pytest.skip(str(error))


@pytest.fixture
def paceline(slurm: Slurm) -> tuple[str, ...]:
    (slurm.folder / "train.py").write_text(SCRIPT)
    for name in ("running", "saved"):  # of an earlier test
        (slurm.folder / name).unlink(missing_ok=True)
    return sys.executable, "-m", "paceline"


def until(is_so: Callable[[], bool]) -> None:
    by = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < by
        time.sleep(0.1)


def test_in_an_allocation_no_flag_is_needed(slurm: Slurm, paceline: tuple[str, ...]) -> None:
    plain = subprocess.run([sys.executable, "train.py"], cwd=slurm.folder, capture_output=True, text=True, check=True)
    run = (*paceline, "run", "--quiet", "train.py")
    said = slurm.typed("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *run)
    assert said == plain.stdout
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", *run, "fail"], env=slurm.environment, cwd=slurm.folder, capture_output=True
    )
    assert done.returncode == 7


def test_tasks_of_srun_on_several_nodes_are_one_run(slurm: Slurm, paceline: tuple[str, ...]) -> None:
    """Without mpi4py and PMIx, and also with one task a node and the number of workers typed."""
    plain = subprocess.run([sys.executable, "train.py"], cwd=slurm.folder, capture_output=True, text=True, check=True)
    run = (*paceline, "run", "--quiet")
    assert slurm.typed("srun", "--quiet", "--nodes=2", "--ntasks=4", *run, "train.py") == plain.stdout
    assert slurm.typed("srun", "--quiet", "--nodes=2", "--ntasks=2", *run, "-n", "3", "train.py") == plain.stdout
    few = slurm.typed("srun", "--quiet", "--nodes=2", "--ntasks=2", *run, "-n", "1", "train.py", check=False)
    assert few.count("-n 1 is too few for the 2 nodes") == 1


def test_other_verbs_are_jobs_too(slurm: Slurm, paceline: tuple[str, ...]) -> None:
    """With the options about the cluster, and a mistake of each kind."""
    submit = (*paceline, "submit", "--slurm", "--nodes", "2", "--account", "physics", "--partition", "main")
    line = (*submit, "--time", "5:00", "scale", "-n", "1,2", "--repeat", "1", "--steps", "2", "--quiet", "train.py")
    job = slurm.typed(*line).split()[-1]
    until(lambda: "JobState=COMPLETED" in slurm.typed("scontrol", "show", "job", job))
    about = slurm.typed("scontrol", "show", "job", job)
    assert "Account=physics" in about
    assert "TimeLimit=00:05:00" in about
    refused = slurm.typed(*submit, "--partition", "nonsense", "train.py", check=False)
    assert "sbatch refused the job" in refused
    assert "nonsense" in refused
    assert "is not an option of `paceline scale`" in slurm.typed(
        *submit, "scale", "--nonsense", "train.py", check=False
    )


def test_a_cancelled_job_leaves_a_record_and_no_worker(slurm: Slurm, paceline: tuple[str, ...]) -> None:
    job = slurm.typed(*paceline, "submit", "--slurm", "--nodes", "2", "--time", "5", "train.py", "long").split()[-1]
    out = slurm.folder / f"slurm-{job}.out"
    until(lambda: out.exists() and out.read_text().count("\n") >= 3)
    slurm.typed("scancel", job)
    until(lambda: not slurm.typed("squeue", "--noheader", "--jobs", job, check=False).strip())
    assert "Interrupted by SIGTERM" in out.read_text()
    told = max((slurm.folder / "paceline-runs").glob("*/run.json"), key=lambda path: path.stat().st_mtime).read_text()
    assert json.loads(told)["outcome"]["interrupted"]


def test_a_job_is_submitted_and_requeued_when_it_has_saved(slurm: Slurm, paceline: tuple[str, ...]) -> None:
    said = slurm.typed(
        *paceline, "submit", "--slurm", "--nodes", "2", "--run-options=--quiet", "--time", "60", "train.py", "long"
    )
    job = said.split()[-1]
    until((slurm.folder / "running").exists)
    slurm.typed("scancel", "--signal=USR1", "--batch", job)
    until(lambda: "Restarts=1" in slurm.typed("scontrol", "show", "job", job))
    assert (slurm.folder / "saved").exists()
    assert "back into the queue after SIGUSR1 (exit code 75)" in (slurm.folder / f"slurm-{job}.out").read_text()
    slurm.typed("scancel", job)


def test_a_requeued_job_goes_on_from_the_state_that_it_has_saved(slurm: Slurm, paceline: tuple[str, ...]) -> None:
    """On one node and on two, the same command runs twice, without --resume."""
    (slurm.folder / "lasting.py").write_text(LASTING)
    plain = subprocess.run([sys.executable, "lasting.py"], cwd=slurm.folder, capture_output=True, text=True, check=True)
    for nodes in ("1", "2"):
        line = ("--nodes", nodes, "--run-options=--quiet --save-every 1h", "--time", "60", "lasting.py", "slow")
        job = slurm.typed(*paceline, "submit", "--slurm", *line).split()[-1]
        out = slurm.folder / f"slurm-{job}.out"
        until(lambda out=out: out.exists() and out.read_text().count("\n") >= 3)
        slurm.typed("scancel", "--signal=USR1", "--batch", job)
        until(lambda job=job: "JobState=COMPLETED" in slurm.typed("scontrol", "show", "job", job))
        printed = out.read_text()
        assert "back into the queue after SIGUSR1 (exit code 75)" in printed
        assert "The script goes on from commit" in printed
        assert [line for line in printed.splitlines() if line[0].isdigit()] == plain.stdout.splitlines()
