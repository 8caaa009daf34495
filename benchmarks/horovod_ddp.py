"""A Horovod script under `paceline run` against the same script with DistributedDataParallel, under torchrun.

    python benchmarks/horovod_ddp.py            # two workers, CPU; prints the ratio of samples/s

The scripts are benchmarks/mnist_horovod.py and benchmarks/mnist_ddp.py: a small CNN, whose gradients are many small
tensors, so that the cost of communication shows. Both print the same losses, because both average the gradients of the
same batches.

Seen on 2 cores, torch 2.13, 5 rounds: 1.14 (1.09 – 1.39) × the samples/s of DDP, with equal losses.
Seen on a VM with 16 cores, torch 2.11, 5 rounds: 0.93 (0.84 – 1.03) × the samples/s of DDP, with equal losses. A step
of 13 ms waits about 0.7 ms longer for its gradients than with DDP: ranks agree on what is ready before they reduce it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import side_by_side

HERE = Path(__file__).resolve().parent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--batch-size", type=int, default=64)
    options.add_argument("--samples", type=int, default=6400)
    asked = options.parse_args()
    workers = str(asked.workers)
    script = ["--batch-size", str(asked.batch_size), "--samples", str(asked.samples)]
    commands = {
        "Horovod script": [*side_by_side.PACELINE, "run", "-n", workers, str(HERE / "mnist_horovod.py"), *script],
        "DDP": [
            *side_by_side.TORCHRUN,
            "--standalone",
            "--nproc-per-node",
            workers,
            str(HERE / "mnist_ddp.py"),
            *script,
        ],
    }
    printed = {}
    steps = asked.samples // asked.workers // asked.batch_size

    def rate(name: str) -> float:
        printed[name] = [line for line in side_by_side.run(commands[name]) if line.text.startswith("epoch")]
        return side_by_side.samples_per_s(printed[name], asked.batch_size * asked.workers, steps, warm_up=20)

    figures = side_by_side.in_turn({name: lambda n=name: rate(n) for name in commands}, asked.rounds, "samples/s")
    print(f"samples/s of the Horovod script by DDP's: {side_by_side.ratio(*figures.values())}")
    print(f"largest difference of the printed losses: {side_by_side.largest_difference(*printed.values()):.2g}")


if __name__ == "__main__":
    main()
