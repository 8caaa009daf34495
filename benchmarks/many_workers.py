"""Many workers on CPU cores: examples/cnn.py under paceline against DDP, at the same global batch.

    python benchmarks/many_workers.py                                            # as many workers as cores
    PYTHONPATH=src:.gpu-site python3 benchmarks/many_workers.py --workers 8,16 --rounds 4

One thread per worker. `paceline` is the default: the batch view, with the numbers of one process. `slice` is the slice
view, as under DDP. The other side is benchmarks/cnn_ddp.py (Gloo, started by torchrun). The method is that of
benchmarks/cost.py: samples/s from the lines that the scripts print; sides alternate; a ratio is the median over rounds
(smallest – largest). `speed-up` is against the fewest workers of the same side, per worker.

Figures, 2 idle cores, torch 2.13, 4 rounds: 2 workers 2,409 samples/s, 1.299 (1.203 – 1.412) × DDP's.

16 CPU cores (the host of an H200), torch 2.11, paceline / DDP: 1 worker 0.955, 2 workers 0.945, 4 workers
0.959 (one round of 15 steps each); 8 workers 0.960 (0.788 – 1.022), 11 rounds of 40 steps on three such hosts, at 5,500
to 7,300 samples/s; 16 workers 9,882 samples/s, 1.444 (1.420 – 1.467), 2 rounds of 40 steps. The aim is 1.0 from 8
workers on. A worker waits for the others when a batch is put together, when the loss is made and when gradients are
averaged; a worker of DDP only for the last. Workers that are not pinned to cores: 0.996 (0.980 – 1.074) where pinned
ones gave 0.982 (0.927 – 1.022), 4 rounds: no clear difference.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from statistics import median

from side_by_side import PACELINE, ROOT, TORCHRUN, in_turn, ratio, run, samples_per_s

CNN, CNN_DDP = str(ROOT / "examples" / "cnn.py"), str(ROOT / "benchmarks" / "cnn_ddp.py")
BATCH, WARM_UP = 256, 20
ON_CPUS = ("--device", "cpu")  # the example would take a GPU, and cnn_ddp.py does not


def sides(workers: int) -> dict[str, list[str]]:
    ours = [*PACELINE, "run", "-n", str(workers), "--quiet"]
    return {
        "paceline": [*ours, CNN, *ON_CPUS],
        "slice": [*ours, "--mod", "view=slice", CNN, *ON_CPUS],
        "DDP": [*TORCHRUN, "--nproc-per-node", str(workers), "--standalone", CNN_DDP],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare paceline with DDP on many CPU workers, in samples/s.")
    cores = len(os.sched_getaffinity(0))
    usual = ",".join(str(2**k) for k in range(cores.bit_length()) if 2**k <= cores)
    parser.add_argument("--workers", default=usual, help="numbers of workers, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="measured steps per run")
    parser.add_argument("--only", help="sides, separated by commas")
    args = parser.parse_args()
    total = WARM_UP + args.steps
    options = f"--epochs 1 --train-size {total * BATCH} --test-size 500 --log-every 10 --batch-size {BATCH}".split()

    def measure(command: list[str]) -> float:
        return samples_per_s(run([*command, *options], {"OMP_NUM_THREADS": "1"}), BATCH, total, WARM_UP)

    alone: dict[str, float] = {}
    for workers in sorted(map(int, args.workers.split(","))):
        print(f"{workers} workers, one thread each, batch {BATCH}", flush=True)
        commands = {name: command for name, command in sides(workers).items() if name in (args.only or name).split(",")}
        figures = in_turn({name: partial(measure, c) for name, c in commands.items()}, args.rounds, "samples/s")
        for name, found in figures.items():
            alone.setdefault(name, median(found) / workers)  # of the fewest workers
            told = f"  {name}: {median(found):,.0f} samples/s, speed-up {median(found) / alone[name]:.2f}"
            print(told if name == "DDP" else f"{told}; / DDP: {ratio(found, figures['DDP'])}", flush=True)


if __name__ == "__main__":
    main()
