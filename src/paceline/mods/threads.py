"""Threads: how many each worker computes with, and where.

Changes: how sums are cut up between threads, hence the last digits. `threads=2:bound` holds each thread to a core of
its own, physical cores first; without it they go where the system puts them, within the worker's share of the cores (or
anywhere, where there are more threads than that share has). Applies on CPUs. What reads `OMP_NUM_THREADS` only when it
starts (other libraries, processes of the script's) finds the same number. Can break: nothing; too many threads for the
cores are slow. Under `bound`, processes that the script itself starts begin on the first thread's core.

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
ENOUGH = 1 << 17  # numbers for each thread: torch wakes no more threads than it has work for


class Mod:
    """Set before the script begins; a script that sets it itself has the last word."""

    def __init__(self, value: str) -> None:
        threads, _, where = value.partition(":")
        self.threads, self.bound = int(threads), where == "bound"

    def on_stage(self, stage: Stage) -> None:
        if torch.get_num_threads() != self.threads:  # the launcher has placed the worker accordingly
            torch.set_num_threads(self.threads)
        host = discover()
        try:
            torch.set_num_interop_threads(len({core.physical[0] for core in host.cores}))  # one for each package
        except RuntimeError:
            pass  # they are at work already
        if not self.bound:
            return
        firsts = {core.physical: core.id for core in reversed(host.cores)}
        siblings = [core.id for core in host.cores if core.id not in firsts.values()]
        cores = sorted(firsts.values()) + siblings
        if not bind(cores[: self.threads], self.threads):
            stage.pulse.notice(
                f"threads={self.threads}:bound: the threads could not be bound; they go where they like."
            )


def bind(cores: list[int], threads: int) -> bool:
    """Holds torch's threads to these cores, one each; False where there are too few, or the threads are not to be
    found. This thread is the first of them."""
    if len(cores) < threads:
        return False
    before = set(os.listdir(TASKS))
    torch.ones(ENOUGH * threads).add_(1)  # wakes the others, which are made by the first that needs them
    others = sorted(set(os.listdir(TASKS)) - before, key=int)
    if len(others) != threads - 1:
        return False
    for task, core in zip(["0", *others], cores, strict=True):
        os.sched_setaffinity(int(task), [core])
    return True
