"""Overhead and speed-up of paceline: examples/cnn.py in samples/s against plain python and DDP, on CPUs.

    python benchmarks/cost.py                # both comparisons, about ten minutes on 2 cores
    python benchmarks/cost.py --rounds 3 --only ddp

`one`: one worker under paceline against plain python, the same script, the same threads.
`ddp`: two workers under paceline against the same script ported to DDP by hand (benchmarks/cnn_ddp.py, Gloo, started by
torchrun), the same global batch, one thread per worker; and against plain python with one thread, which shows how well
each side scales.

Method: the script prints its loss every few steps, and the benchmark records the arrival time of each line. Samples/s
are measured from the line of step 20 to the last line, so start-up and teardown do not count, and no side is edited.
Sides alternate; a ratio is the median over rounds (smallest – largest).

Figures. 16 idle cores: `ddp` 1.072 (0.835 – 1.458), 5 rounds of 30 steps; two workers are 2.11 times as fast as plain
python with one thread, DDP 1.85 times. A worker keeps the memory that a step has freed; DDP, and plain python, pay in
some runs for 1,000 pages a step and in others for 15,000, hence the spread. 2 cores of a VM whose speeds differ by up
to a third from minute to minute: `one` 1.121 (0.920 – 1.223), 5 rounds; `ddp` 1.21 and 1.24, 2 rounds of 40 steps,
and 0.936 (0.802 – 1.030) before workers kept their memory. The batch view synchronises the workers at the batch, the
outputs and the gradients, DDP at the gradients only.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

from side_by_side import PACELINE, ROOT, TORCHRUN, in_turn, ratio, run, samples_per_s

CNN = str(ROOT / "examples" / "cnn.py")
CNN_DDP = str(ROOT / "benchmarks" / "cnn_ddp.py")
BATCH, WARM_UP = 256, 20


def compare(commands: dict[str, list[str]], *, steps: int, threads: int, rounds: int) -> dict[str, list[float]]:
    """Samples/s of each command in each round. All commands have the same script options and threads per process."""
    total = WARM_UP + steps
    options = f"--epochs 1 --train-size {total * BATCH} --test-size 500 --log-every 10 --batch-size {BATCH}".split()

    def measure(command: list[str]) -> float:
        lines = run([*command, *options], {"OMP_NUM_THREADS": str(threads)})
        return samples_per_s(lines, BATCH, total, WARM_UP)

    return in_turn({name: partial(measure, command) for name, command in commands.items()}, rounds, "samples/s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare paceline with plain python and with DDP, in samples/s.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="measured steps per run")
    parser.add_argument("--threads", type=int, default=2, help="threads of the single process in `one`")
    parser.add_argument("--only", choices=("one", "ddp"))
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
    args = parser.parse_args()
    plain = [*PACELINE[:1], CNN]
    everything = {}

    if args.only != "ddp":
        print(f"one: 1 worker against plain python, {args.threads} threads")
        commands = {"paceline": [*PACELINE, "run", "-n", "1", "--quiet", CNN], "python": plain}
        figures = compare(commands, steps=args.steps, threads=args.threads, rounds=args.rounds)
        everything["one"] = figures
        print(f"  paceline / python: {ratio(figures['paceline'], figures['python'])}")

    if args.only != "one":
        print("ddp: 2 workers against DDP, one thread each, the same global batch")
        commands = {
            "paceline": [*PACELINE, "run", "-n", "2", "--quiet", CNN],
            "DDP": [*TORCHRUN, "--nproc-per-node", "2", "--standalone", CNN_DDP],
            "python": plain,
        }
        figures = compare(commands, steps=args.steps, threads=1, rounds=args.rounds)
        everything["ddp"] = figures
        print(f"  paceline / DDP: {ratio(figures['paceline'], figures['DDP'])}")
        print(f"  paceline / python with one thread: {ratio(figures['paceline'], figures['python'])}")
        print(f"  DDP / python with one thread: {ratio(figures['DDP'], figures['python'])}")

    if args.json:
        with open(args.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
