"""Numbers and speed of the CNN and GPT examples on a GPU: paceline against plain python.

    python benchmarks/gpu.py
    PYTHONPATH=src:.gpu-site python3 benchmarks/gpu.py       # from source; about five minutes

`numbers`: compares the printed numbers of a short run with those of plain python: under `-n 1`, under
`-n 2 --backend gloo` with both workers on one GPU, also with the mod `cuda_graphs`, and under plain python again,
because some GPU kernels sum in a different order each time. TF32 is off in this part, because TF32 rounds a slice
differently from a batch. Two workers use the batch view: all numbers are of the whole batch.
`speed`: samples/s of one worker against plain python, with unchanged scripts (evaluation included), from the lines that
the scripts print. Sides alternate; a ratio is the median over rounds (smallest – largest).

Figures, one H200, torch 2.11, Python 3.12, 16 host cores:

    numbers   CNN: python again 9.2e-06, -n 1 9.2e-06, -n 2 9.2e-06, also with cuda_graphs (17 of 20 steps replayed
              three graphs: forward, backward, optimizer). GPT: python again 0, -n 1 0, -n 2 2.7e-06, also with
              cuda_graphs.
    speed     GPT: 0.994 (0.964 – 1.002), 4 rounds. CNN: 0.919 (0.762 – 1.022), 7 rounds, with every step split by
              events; 1.001 (0.839 – 1.089), 4 rounds, and 0.882 (0.770 – 0.969), 3 rounds, with one step in ten.
              The aim is 0.98. A step of the CNN takes 3 to 4 ms of host time, on a host whose speed changes by 40 %
              between runs; the seams add 0.1 to 0.2 ms (benchmarks/seams.py: 0.94 to 0.96).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial

from side_by_side import PACELINE, ROOT, in_turn, largest_difference, ratio, run, samples_per_s

STEPS = 100  # steps of an epoch
BATCH = {"cnn": 256, "gpt": 64}
EPOCHS = {"cnn": 10, "gpt": 5}
WARM_UP = {"cnn": 200, "gpt": 60}


def script(name: str, *, steps: int, epochs: int) -> list[str]:
    """The command of an example with this number of steps per epoch."""
    size = ["--train-size", str(steps * BATCH[name]), "--test-size", str(BATCH[name])]
    return [str(ROOT / "examples" / f"{name}.py"), "--epochs", str(epochs), "--log-every", "10", *size]


def numbers(name: str) -> dict[str, float]:
    """The largest relative difference from the numbers of plain python."""
    same = script(name, steps=20, epochs=2)
    exact = {"NVIDIA_TF32_OVERRIDE": "0"}
    plain = run([sys.executable, *same], exact)
    two = [*PACELINE, "run", "-n", "2", "--backend", "gloo", "--quiet"]
    commands = {
        "python again": [sys.executable, *same],
        "paceline -n 1": [*PACELINE, "run", "-n", "1", "--quiet", *same],
        "paceline -n 2": [*two, *same],
        "paceline -n 2, cuda_graphs": [*two, "--mod", "cuda_graphs", *same],
    }
    found = {}
    for side, command in commands.items():
        found[side] = largest_difference(plain, run(command, exact))
        print(f"  {side}: {found[side]:.1e}", flush=True)
    return found


def speed(name: str, rounds: int) -> dict[str, list[float]]:
    """Samples/s of both sides in each round."""
    same = script(name, steps=STEPS, epochs=EPOCHS[name])

    def measure(command: list[str]) -> float:
        return samples_per_s(run([*command, *same]), BATCH[name], STEPS, WARM_UP[name])

    sides = {"paceline": [*PACELINE, "run", "-n", "1", "--quiet"], "python": [sys.executable]}
    return in_turn({side: partial(measure, command) for side, command in sides.items()}, rounds, "samples/s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare paceline with plain python on a GPU.")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=("cnn", "gpt"))
    parser.add_argument("--skip", choices=("numbers", "speed"))
    args = parser.parse_args()
    everything = {}
    for name in [args.only] if args.only else ["cnn", "gpt"]:
        told = everything[name] = {}
        if args.skip != "numbers":
            print(f"{name}: largest difference to the numbers of plain python", flush=True)
            told["difference"] = numbers(name)
        if args.skip != "speed":
            print(f"{name}: samples/s of one worker", flush=True)
            told["samples_per_s"] = figures = speed(name, args.rounds)
            told["ratio"] = asdict(ratio(figures["paceline"], figures["python"]))
            print(f"  paceline / python: {ratio(figures['paceline'], figures['python'])}", flush=True)
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
