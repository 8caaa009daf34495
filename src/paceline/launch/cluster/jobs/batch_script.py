"""The batch script that `paceline submit --slurm` gives to sbatch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

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
    """What to run, and on what. Empty texts and zeros leave the choice to the cluster. `warning` is the number of
    seconds from SIGUSR1 to the time limit. `container`: an image, in which one process of the command runs on each
    node; `command` then is for the image, and the processes meet at the first node."""

    name: str
    command: Sequence[str]
    folder: str
    nodes: int = 1
    workers_per_node: int = 1
    gpus_per_node: int = 0
    time: str = ""
    partition: str = ""
    account: str = ""
    container: str = ""
    warning: int = 120
    more: Sequence[str] = ()  # options of sbatch, as typed


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
