"""The examples with all mods that help on a GPU, against plain python: samples/s while stepping.

    PYTHONPATH=src:.gpu-site python3 benchmarks/together.py    # on a GPU; about five minutes

`resnet18`: batch 128, with cuda_graphs, resident, precision=bf16, channels_last and compile. `gpt`: batch 256, with
cuda_graphs, resident, precision=bf16 and compile. The scripts are unchanged: both read the loss and the accuracy on the
host at every step. Rates are medians over the spans between two lines that the script prints, without the first epochs
(compilation). Sides alternate; a ratio is the median over rounds (smallest – largest).

Figures, one H200, torch 2.11, Python 3.12: resnet18 83,250, 78,320 and 78,000 images/s against 13,710, 14,590 and
13,040: 5.98 (5.37 – 6.07). Plain python depends on the host: others gave 10,094 to 10,360, against which this is 7.6 ×;
the whole step by hand in one graph gave 92,000 to 98,500. gpt 28,300 and 27,770 sequences/s against 6,216 and 6,069:
4.56 (4.55 – 4.58), 2 rounds; by hand 33,500, with a loss in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from side_by_side import PACELINE, ROOT, in_turn, ratio, run, samples_per_s

STEPS = {"resnet18": 100, "gpt": 40}  # of an epoch
BATCH = {"resnet18": 128, "gpt": 256}
EPOCHS = {"resnet18": 8, "gpt": 6}
MODS = {
    "resnet18": ("cuda_graphs", "resident", "precision=bf16", "channels_last", "compile"),
    "gpt": ("cuda_graphs", "resident", "precision=bf16", "compile"),
}


def measure(name: str, command: list[str]) -> float:
    steps, batch = STEPS[name], BATCH[name]
    options = ["--batch-size", str(batch), "--train-size", str(steps * batch), "--test-size", str(batch)]
    options += ["--epochs", str(EPOCHS[name]), "--log-every", "20"]
    lines = run([*command, str(ROOT / "examples" / f"{name}.py"), *options])
    return samples_per_s(lines, batch, steps, warm_up=2 * steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the examples with all mods that help on a GPU.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=MODS)
    args = parser.parse_args()
    for name in [args.only] if args.only else MODS:
        mods = [part for mod in MODS[name] for part in ("--mod", mod)]
        sides = {
            "mods": partial(measure, name, [*PACELINE, "run", "-n", "1", "--quiet", *mods]),
            "python": partial(measure, name, [sys.executable]),
        }
        print(f"{name}: samples/s", flush=True)
        figures = in_turn(sides, args.rounds, "samples/s")
        print(f"  mods / python: {ratio(figures['mods'], figures['python'])}", flush=True)


if __name__ == "__main__":
    main()
