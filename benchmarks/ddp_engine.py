"""Mirrored with its own gradient buckets against torch's DistributedDataParallel, in samples/s.

    python benchmarks/ddp_engine.py

Two workers, one thread and one core each, started by torchrun on both sides; Mirrored uses shared memory, DDP uses
Gloo; data in memory, plain SGD. The Mirrored side is `paceline.Mirrored().distribute(model, optimizer)` on whole
batches: it also gathers the outputs, and every worker prints the loss of the whole batch. The DDP side gives each
worker half of the batch, and prints the loss of that half. Models: the CNN of examples/cnn.py (421,642 parameters), and
an MLP of 21 M parameters at a batch size with much communication and at one with little. Sides alternate; a ratio is
the median over rounds (smallest – largest).

Figures, 2 cores of a VM whose speeds differ by up to a third from minute to minute. Mirrored / DDP on the CNN: 1.005
(0.848 – 1.251) in 5 rounds; later 0.891 (0.811 – 0.943) in 7 rounds, and 1.032, 1.056 and 0.931 in 2 rounds each,
within one hour. On the MLP at batch 64: 1.462 (1.351 – 1.596) in 5 rounds. So Mirrored keeps its own engine: the engine
is about as fast with little communication and faster with much, and DDP would need a second copy of the state that the
seams hold (unused and late parameters, withheld gradients).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial

from side_by_side import ROOT, TORCHRUN, in_turn, ratio, run

CASES = {"cnn": ("cnn", 256, 40), "mlp, batch 64": ("mlp", 64, 40), "mlp, batch 512": ("mlp", 512, 15)}
WARM_UP = {"cnn": 12, "mlp": 45}  # steps: Mirrored tries bucket sizes in the first 40 steps of a large model


def work(engine: str, kind: str, batch: int, steps: int) -> None:
    """One worker of one side. Rank 0 prints samples/s and the last loss."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    torch.manual_seed(0)
    if kind == "cnn":
        sys.path.insert(0, str(ROOT / "examples"))
        from cnn import CNN

        model, x = CNN(1, 28, 10, 0.0), torch.randn(batch, 1, 28, 28)
    else:
        model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10))
        x = torch.randn(batch, 1024)
    y = torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if engine == "mirrored":
        import paceline

        model, optimizer = paceline.Mirrored().distribute(model, optimizer)
    else:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        own = slice(batch * rank // world, batch * (rank + 1) // world)
        x, y = x[own], y[own]

    warm_up = WARM_UP[kind] if batch < 512 else 12
    for step in range(warm_up + steps):
        if step == warm_up:
            began = time.perf_counter()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.item()
    seconds = time.perf_counter() - began
    if rank == 0:
        print(f"figures {steps * batch / seconds} {shown}", flush=True)
    os._exit(0)  # Gloo sometimes hangs in its teardown under DDP


def measure(engine: str, kind: str, batch: int, steps: int) -> float:
    command = [*TORCHRUN, "--nproc-per-node", "2", "--standalone", __file__, "--worker", engine, kind]
    lines = run([*command, str(batch), str(steps)], {"OMP_NUM_THREADS": "1"})
    return next(float(line.text.split()[1]) for line in lines if line.text.startswith("figures "))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the engines of Mirrored and DDP, in samples/s.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
    parser.add_argument("--worker", nargs=4, metavar=("ENGINE", "MODEL", "BATCH", "STEPS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        engine, kind, batch, steps = args.worker
        return work(engine, kind, int(batch), int(steps))

    everything = {}
    for name, case in CASES.items() if not args.only else [(args.only, CASES[args.only])]:
        print(name)
        sides = {engine: partial(measure, engine, *case) for engine in ("mirrored", "ddp")}
        figures = everything[name] = in_turn(sides, args.rounds, "samples/s")
        print(f"  mirrored / ddp: {ratio(figures['mirrored'], figures['ddp'])}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
