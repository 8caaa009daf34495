"""The mod `threads` in a worker as the launcher makes one: forked from a process that never computed."""

from __future__ import annotations

import ast
import os

import pytest
from launched import Play

SCRIPT = """
    import os, torch
    torch.ones(1 << 20).add_(1)  # with all threads
    tasks = [int(task) for task in os.listdir("/proc/self/task")]
    print([sorted(os.sched_getaffinity(task)) for task in sorted(tasks)], torch.get_num_threads(),
          os.environ["OMP_NUM_THREADS"], torch.get_num_interop_threads(), sep="|")
    model = torch.nn.Linear(64, 64)
    print(model(torch.randn(8, 64)).sum().item())
    """


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads are bound to two cores")
@pytest.mark.parametrize("workers", [1, 2])
def test_threads_are_bound_to_a_core_each(play: Play, workers: int) -> None:
    launched = play(SCRIPT, workers=workers, mods=("threads=2:bound",))
    for rank in range(workers):
        masks, threads, environment, interop = launched.log(rank).splitlines()[0].split("|")
        first, *others = ast.literal_eval(masks)
        bound = {tuple(mask) for mask in (first, *others) if len(mask) == 1}
        assert len(first) == 1
        assert len(bound) == 2
        assert (threads, environment) == ("2", "2")
        assert int(interop) >= 1


def test_more_threads_than_the_share_of_a_worker_may_go_anywhere(play: Play) -> None:
    launched = play(SCRIPT, workers=2, mods=("threads=3",))
    for rank in range(2):
        masks, threads, _, _ = launched.log(rank).splitlines()[0].split("|")
        assert ast.literal_eval(masks)[0] == sorted(os.sched_getaffinity(0))
        assert threads == "3"
    numbers = [launched.log(rank).splitlines()[1] for rank in range(2)]
    assert numbers[0] == numbers[1]
