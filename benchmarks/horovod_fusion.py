"""Fusion of Horovod's interface: 1,000 tensors of 4 KB, submitted in another random order on each of two ranks.

    python benchmarks/horovod_fusion.py                 # against 1,000 all-reduces of torch's Gloo, one after the other

Both sides run in the same two workers, in alternation: `hvd.allreduce_async_` of all tensors by name, then
`hvd.synchronize`; and `dist.all_reduce` of all tensors, which must have the same order on both ranks. A second line
compares with Gloo's asynchronous all-reduces, all started before the first is waited for.

Seen on 2 cores, torch 2.13, 7 rounds: Gloo takes 68 (51 – 71) × as long, and 62 (53 – 71) × if all are started at once.
Seen on a VM with 16 cores, torch 2.11, three runs of 9 rounds: Gloo takes 13.4 (5.6 – 16.1), 9.8 (2.2 – 20.0) and 12.1
(7.8 – 15.2) × as long; 8.9, 7.1 and 8.4 × as long if all are started at once.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import side_by_side
import torch

TENSORS, NUMBERS = 1000, 1024


def work(rounds: int) -> None:
    """One of the two workers."""
    import torch.distributed as dist

    import paceline.horovod.torch as hvd

    hvd.init()
    dist.init_process_group("gloo")
    tensors = [torch.full((NUMBERS,), float(number)) for number in range(TENSORS)]
    names = [f"tensor.{number}" for number in range(TENSORS)]
    turn = 0

    def horovod() -> None:
        nonlocal turn
        order = list(range(TENSORS))
        random.Random(turn * hvd.size() + hvd.rank()).shuffle(order)
        turn += 1
        handles = [hvd.allreduce_async_(tensors[number], name=names[number]) for number in order]
        for handle in handles:
            hvd.synchronize(handle)

    def gloo() -> None:
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= 2

    def gloo_started_at_once() -> None:
        for started in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            started.wait()
        for tensor in tensors:
            tensor /= 2

    def seconds(side: object) -> float:
        hvd.barrier()
        began = time.perf_counter()
        side()  # type: ignore[operator]
        return time.perf_counter() - began

    sides = {"Horovod's interface": horovod, "Gloo": gloo, "Gloo, started at once": gloo_started_at_once}
    for side in sides.values():
        seconds(side)
    assert [float(tensor[0]) for tensor in tensors] == [float(number) for number in range(TENSORS)]
    if hvd.rank():
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115
    figures = side_by_side.in_turn({name: lambda s=side: seconds(s) for name, side in sides.items()}, rounds, "s")
    for name in list(sides)[1:]:
        print(f"{name} takes {side_by_side.ratio(figures[name], figures[next(iter(sides))])} × as long")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.worker:
        work(asked.rounds)
        return
    command = [*side_by_side.PACELINE, "run", "-n", "2", "--as", "torchrun", __file__]
    for line in side_by_side.run([*command, "--worker", "--rounds", str(asked.rounds)]):
        print(line.text)


if __name__ == "__main__":
    main()
