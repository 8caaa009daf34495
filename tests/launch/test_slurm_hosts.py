"""What Paceline makes of a Slurm allocation, and of a job for one. A real Slurm is in tests/acceptance."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.checkpoint.save import save_states
from paceline.errors import LaunchError, UsageError
from paceline.launch import processes
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.jobs.batch_script import Job, batch_script
from paceline.launch.cluster.slurm import allocated, is_here, workers_of
from paceline.launch.restarts import of_this_job, with_restarts
from paceline.record import Outcome
from paceline.settings import (
    RunSettings,
    SaveSettings,
    is_one_of_several,
    slurm_allocation,
    slurm_step,
    without_slurm_options,
)

INSIDE = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_CONF": "/etc/slurm.conf",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that knows the nodes, and an srun that notes how it was called."""
    texts = {
        "scontrol": "printf 'n1\\nn2\\nn3\\n'",
        "srun": f'printf "%s\\n" "$@" > {tmp_path}/typed; cat > {tmp_path}/stdin',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_an_allocation_has_as_many_workers_as_tasks_or_gpus(programs: Path) -> None:
    assert slurm_allocation({}) is None
    assert not is_one_of_several({})
    found = slurm_allocation(INSIDE)
    assert found is not None
    assert is_one_of_several(INSIDE)
    assert workers_of(found) == [2, 2, 1]
    assert allocated(found, None).hosts() == [HostSpec("n1", 2), HostSpec("n2", 2), HostSpec("n3", 1)]
    assert [host.workers for host in allocated(found, 7).hosts()] == [3, 2, 2]
    with pytest.raises(UsageError, match="-n 2 is too few for the 3 nodes of job 7"):
        allocated(found, 2)
    with_gpus = slurm_allocation(INSIDE | {"SLURM_GPUS_ON_NODE": "4"})
    assert with_gpus is not None
    assert workers_of(with_gpus) == [4, 4, 4]


def test_the_tasks_of_an_srun_are_its_workers(programs: Path) -> None:
    """The step may have fewer nodes than its job, and has no workers for the GPUs of the job."""
    task = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "0", "SLURM_GPUS_ON_NODE": "4"}
    one = INSIDE | task | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "3"}
    assert slurm_step(INSIDE) is None
    assert slurm_step(one) is None
    step = slurm_step(
        one | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NODELIST": "n[1-2]"}
    )
    assert step is not None
    assert (step.nodelist, workers_of(step)) == ("n[1-2]", [2, 1])


def test_a_job_of_one_node_needs_no_agents_there() -> None:
    one = INSIDE | {"SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "4"}
    away, there = slurm_allocation(one), slurm_allocation(one | {"SLURMD_NODENAME": "n1"})
    assert away is not None
    assert there is not None
    assert (is_here(away), is_here(there)) == (False, True)
    assert workers_of(there) == [4]


def test_an_agent_is_a_step_and_its_secret_comes_on_standard_input(programs: Path) -> None:
    found = slurm_allocation(INSIDE)
    assert found is not None
    agent = allocated(found, 3).start_agent(HostSpec("n2", 1), {"PYTHONHASHSEED": "5"}, b"the secret")
    agent.kill(20.0)
    words = (programs / "typed").read_text().split()
    assert {"--overlap", "--jobid=7", "--nodelist=n2", "PYTHONHASHSEED=5"} <= set(words)
    assert (programs / "stdin").read_text() == "the secret\n"
    assert not any("the secret" in word for word in words)
    kept = without_slurm_options(INSIDE | {"HOME": "/"})
    assert kept == {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/"}


def test_a_slurm_that_does_not_answer_is_told_of(programs: Path) -> None:
    (programs / "scontrol").write_text("#!/bin/sh\necho no such nodes >&2; exit 1\n")
    found = slurm_allocation(INSIDE)
    assert found is not None
    with pytest.raises(LaunchError, match="no such nodes"):
        allocated(found, None)


@pytest.mark.parametrize(
    ("on_signal", "code", "requeued"), [("exit 75", 75, True), ("exit 0", 0, False), (":", 3, True)]
)
def test_the_batch_script_passes_the_signal_on_and_requeues(
    programs: Path, on_signal: str, code: int, requeued: bool
) -> None:
    """The run is played by a shell; its `exit 3` comes only after the signal."""
    (programs / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {programs}/requeued\n')
    played = f"trap '{on_signal}; told=1' USR1; echo ready; while [ -z \"$told\" ]; do sleep 0.01; done; exit 3"
    job = Job(name="x", command=["sh", "-c", played], folder="/")
    process = subprocess.Popen(["bash", "-c", batch_script(job)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=50)
    assert process.returncode == code
    assert (programs / "requeued").exists() == requeued


LASTING = """
import os, signal, threading, torch, paceline
model = torch.nn.Linear(1, 1)
state = paceline.Elastic(model, step=0)
while state.step < 4:
    print(state.step, flush=True)
    if state.step == 1 and "SLURM_RESTART_COUNT" not in os.environ:
        handle, came = signal.getsignal(signal.SIGUSR1), threading.Event()
        signal.signal(signal.SIGUSR1, lambda *told: (handle(*told), came.set()))
        os.kill(int(os.environ["BATCH"]), signal.SIGUSR1)
        came.wait()  # until the signal has come back from the batch script, by way of the launcher
    state.step += 1
    state.commit()
"""


@pytest.mark.slow
def test_a_job_that_starts_again_goes_on_from_its_state(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch script is started twice, as Slurm would do it."""
    (programs / "train.py").write_text(LASTING)
    (programs / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {programs}/requeued\n')
    command = [sys.executable, "-m", "paceline", "run", "--quiet", "--save-every", "1h", "train.py"]
    (programs / "job").write_text(
        f"export BATCH=$$\n{batch_script(Job(name='x', command=command, folder=str(programs)))}"
    )
    node = {"SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "1", "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
    for name, value in (INSIDE | node).items():
        monkeypatch.setenv(name, value)
    first = subprocess.run(["bash", str(programs / "job")], capture_output=True, text=True)
    assert (first.returncode, first.stdout) == (75, "0\n1\n"), first.stderr
    assert (programs / "requeued").read_text() == "requeue 7\n"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    second = subprocess.run(["bash", str(programs / "job")], capture_output=True, text=True)
    assert (second.returncode, second.stdout) == (0, "2\n3\n"), second.stderr


def test_a_job_goes_on_only_from_what_it_has_saved_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where jobs that run at the same time save to one folder: the last one to save decides."""
    typed = SaveSettings(folder=str(tmp_path / "saves" / "train"))

    def start(job: str, restarts: int) -> bool:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        assert of_this_job(typed).job == job
        return of_this_job(typed).resume == typed.folder

    def save(job: str) -> None:
        save_states(Path(typed.folder), [], step=1, extra=None, job=job)

    save("")
    assert of_this_job(typed) == typed  # outside of Slurm
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    assert not start("7", 1)  # the state is that of an earlier run: job 7 was killed before its first save
    save("7")
    assert not start("7", 0)
    assert start("7", 1)
    assert not start("8", 1)
    save("8")
    assert not start("7", 2)
    told: list[str] = []

    def attempt(run: RunSettings) -> Outcome:
        assert run.saving is not None
        assert not run.saving.resume
        return Outcome(exit_code=1, seconds=0.0, interrupted=True)

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with_restarts(RunSettings(script="x.py", saving=typed), tmp_path, lambda event: told.append(str(event)), attempt)
    assert "holds the state of Slurm job 8. This job, 7, starts from the beginning" in told[0]


def test_the_batch_script_has_what_was_asked() -> None:
    job = Job(
        name="train",
        command=["python", "-m", "paceline", "run", "a b.py"],
        folder="/some where",
        nodes=2,
        workers_per_node=4,
        gpus_per_node=4,
        time="1:00",
        partition="big",
        more=["--account=x"],
    )
    text = batch_script(job)
    for option in (
        "nodes=2",
        "ntasks-per-node=4",
        "gpus-per-node=4",
        "time=1:00",
        "partition=big",
        "account=x",
        "requeue",
    ):
        assert f"#SBATCH --{option}\n" in text
    assert "cd '/some where' || exit\npython -m paceline run 'a b.py' &\n" in text


def test_whether_a_process_handles_a_signal() -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, print); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.handles(process.pid, signal.SIGUSR1)
        assert not processes.handles(process.pid, signal.SIGUSR2)
        process.kill()
    assert not processes.handles(process.pid, signal.SIGUSR1)
