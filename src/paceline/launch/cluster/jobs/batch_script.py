"""The batch script that `paceline submit --slurm` gives to sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.options import option

TEXT = """\
#!/bin/bash
{options}
# Slurm sends SIGUSR1 before the time limit. A script that handles it saves its state and ends with a code other than 0:
# then the job goes back into the queue. A job that is preempted goes back by itself (--requeue).
told=
again=
trap 'told=1; again=1; kill -USR1 "$run" 2>/dev/null' USR1
trap 'again=1; kill -TERM "$run" 2>/dev/null' TERM
cd {folder} || exit
{before}{command} &
run=$!
[ -z "$told" ] || kill -USR1 "$run" 2>/dev/null  # the signal came before the run had a number
while :; do
    again=
    wait "$run"
    code=$?
    [ -n "$again" ] || break  # a signal ends `wait`, not the run
done
if [ -n "$told" ] && [ "$code" -ne 0 ]; then
    echo "paceline: back into the queue after SIGUSR1 (exit code $code)" >&2
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
PORT = 29500
MEET = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PACELINE_SECRET=$(head -c 24 /dev/urandom | base64)
export PACELINE_SECRET
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run, and on what. Empty texts and zeros leave the choice to the cluster. With a container, one process of
    the command runs on each node; `command` then is for the image, and the processes meet at the first node."""

    PANEL: ClassVar = "Slurm"
    name: str = option("", "Name of the job.", "NAME", usual="the script's", panel="")
    command: Sequence[str] = ()
    folder: str = ""
    nodes: int = option(1, "Number of hosts.", "N", least=1, panel="")
    workers_per_node: int = option(1, "Number of workers on each host.", "N", least=1, panel="")
    gpus_per_node: int = option(
        0, "Number of GPUs on each host.", "N", least=0, usual="no GPUs are asked for", panel=""
    )
    slurm: bool = option(False, "Submit a batch job to Slurm.")
    time: str = option("", "Time limit: 2:00:00.", "TIME")
    partition: str = option("", "Partition.", "NAME")
    account: str = option("", "Account to charge.", "NAME")
    container: str = option(
        "",
        "Container image with Paceline and torch to run in, on clusters with pyxis. It sees the current folder.",
        "IMAGE",
    )
    warning: int = option(
        120,
        "Time between SIGUSR1, which is passed on to the script, and the time limit.",
        "SECONDS",
        names="--warn-before",
        least=1,
    )
    more: tuple[str, ...] = option(
        (), "Another option of sbatch: --sbatch=--qos=high. May be repeated.", "OPTION", names="--sbatch"
    )


def batch_script(job: Job) -> str:
    """The text of the script."""
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.workers_per_node}",
        *([f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        *([f"--time={job.time}"] if job.time else []),
        *([f"--partition={job.partition}"] if job.partition else []),
        *([f"--account={job.account}"] if job.account else []),
        "--requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{job.warning}",
        *job.more,
    ]
    return TEXT.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        folder=shlex.quote(job.folder),
        before=MEET if job.container and job.nodes > 1 else "",
        command=_in_container(job) if job.container else shlex.join(job.command),
    )


def _in_container(job: Job) -> str:
    """A step with one task on each node, in the image (pyxis). The folder is there at the same path."""
    tasks = [f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1", "--overlap", "--cpu-bind=none"]
    image = [f"--container-image={job.container}", f"--container-mounts={job.folder}:{job.folder}"]
    program, verb, *words = job.command
    # Without --on local, a task would take srun for mpirun, or the allocation for hosts to start agents on.
    meet = f' --rendezvous "$first:{PORT}" --nodes {job.nodes}' if job.nodes > 1 else ""
    step = shlex.join(["srun", *tasks, *image, f"--container-workdir={job.folder}", program, verb, "--on", "local"])
    return f"{step}{meet} {shlex.join(words)}"
