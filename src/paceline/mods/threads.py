"""Threads: the number of threads of each worker, and their cores.

Changes: how sums are divided between threads, hence the last digits. `threads=2:bound` binds each thread to its own
core, physical cores first. Without `bound` the system places the threads within the worker's share of the cores (or on
any core, if the share has fewer cores than threads). Applies on CPUs. `OMP_NUM_THREADS` gets the same number, for
libraries and child processes that read it at their start. Can break: nothing, but more threads than cores are slow.
With `bound`, processes that the script starts begin on the first thread's core.

By hand:

    torch.set_num_threads(N)
    os.sched_setaffinity(0, cores)
"""

from __future__ import annotations

import os

import torch

from paceline.script.seams.stage import Stage
from paceline.topology import discover

TASKS = "/proc/self/task"
ENOUGH = 1 << 17  # elements per thread: torch starts no more threads than the work needs


class Mod:
    """Sets the number before the script begins; a script's own setting overrides it."""

    def __init__(self, value: str) -> None:
        threads, _, where = value.partition(":")
        self.threads, self.bound = int(threads), where == "bound"

    def on_stage(self, stage: Stage) -> None:
        if torch.get_num_threads() != self.threads:  # usually the launcher has already set this number
            torch.set_num_threads(self.threads)
        host = discover()
        try:
            torch.set_num_interop_threads(len({core.physical[0] for core in host.cores}))  # one for each package
        except RuntimeError:
            pass  # torch has already started them
        if not self.bound:
            return
        firsts = {core.physical: core.id for core in reversed(host.cores)}
        siblings = [core.id for core in host.cores if core.id not in firsts.values()]
        cores = sorted(firsts.values()) + siblings
        if not bind(cores[: self.threads], self.threads):
            stage.pulse.notice(
                f"threads={self.threads}:bound: the threads could not be bound to cores; the system places them."
            )


def bind(cores: list[int], threads: int) -> bool:
    """Binds torch's threads to these cores, one thread per core. The calling thread is the first. Returns False if
    there are too few cores, or if torch's threads cannot be identified."""
    if len(cores) < threads:
        return False
    before = set(os.listdir(TASKS))
    torch.ones(ENOUGH * threads, device="cpu").add_(1)  # torch starts its other threads at the first large op
    others = sorted(set(os.listdir(TASKS)) - before, key=int)
    if len(others) != threads - 1:
        return False
    for task, core in zip(["0", *others], cores, strict=True):
        os.sched_setaffinity(int(task), [core])
    return True
