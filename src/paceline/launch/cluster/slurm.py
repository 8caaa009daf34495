"""The nodes of a Slurm allocation: an agent is a step of the job, and ends with its srun."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.process import ProcessAgent, agent_command
from paceline.settings import SlurmAllocation, without_slurm_options
from paceline.units import count

# --overlap: the step shares the node with the other steps of the job. An agent places its workers on cores itself.
STEP = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--kill-on-bad-exit=0", "--quiet")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class SlurmHosts:
    """The nodes of a job, with the workers of each."""

    job: str
    listed: Sequence[HostSpec]
    patience: ClassVar[float] = 60.0  # seconds: a busy Slurm starts steps slowly

    def hosts(self) -> list[HostSpec]:
        return list(self.listed)

    def words(self) -> list[str]:
        return []  # in the same allocation

    def start_agent(self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes) -> ProcessAgent:
        command = [*STEP, f"--jobid={self.job}", f"--nodelist={host.name}", *agent_command(variables)]
        return ProcessAgent(command, secret_on_stdin, without_slurm_options())


def workers_of(allocation: SlurmAllocation) -> list[int]:
    """The workers of each node: one for each of its tasks or GPUs, whichever are more."""
    tasks = [
        int(match[1])
        for part in allocation.tasks.split(",")
        if (match := _TASKS.fullmatch(part.strip()))
        for _ in range(int(match[2] or 1))
    ]
    tasks += [1] * (allocation.nodes - len(tasks))
    return [max(each, allocation.gpus) for each in tasks[: allocation.nodes]]


def is_here(allocation: SlurmAllocation) -> bool:
    """Whether this process runs on the only node of the job: it needs no agents."""
    return allocation.nodes == 1 and bool(allocation.node)


def allocated(allocation: SlurmAllocation, workers: int | None) -> SlurmHosts:
    """The hosts of the job. `workers` is the total, if it was typed. UsageError if there are fewer than nodes."""
    names = _names(allocation)
    shares = workers_of(allocation)
    if workers is not None:
        if workers < len(names):
            raise UsageError(
                f"-n {workers} is too few for the {count(len(names), 'node')} of job {allocation.job}: -n is the "
                "number of workers on all nodes.",
                advice=f"Type -n {len(names)} or more, or --on local for this node alone.",
            )
        each, more = divmod(workers, len(names))
        shares = [each + (number < more) for number in range(len(names))]
    return SlurmHosts(allocation.job, [HostSpec(*pair) for pair in zip(names, shares, strict=True)])


def _names(allocation: SlurmAllocation) -> list[str]:
    command = ["scontrol", "show", "hostnames", allocation.nodelist]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        said = done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        done, said = None, str(error)
    if done is None or done.returncode or not done.stdout.split():
        raise LaunchError(
            f"The nodes of job {allocation.job} ({allocation.nodelist}) cannot be found: {said.strip() or command}.",
            advice="Look at `scontrol show hostnames`, name the hosts with --hosts, or type --on local.",
        )
    return done.stdout.split()
