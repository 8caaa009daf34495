"""Overhead of measuring gradient noise: the loop of examples/cnn.py on two workers, with and without --noise-scale.

    python benchmarks/noise.py            # about two minutes on two cores

The two runs alternate; samples/s come from the lines that the script prints. Aim: an overhead below 1 %.
"""

from __future__ import annotations

import argparse
from functools import partial

from side_by_side import PACELINE, ROOT, in_turn, ratio, run, samples_per_s

BATCH, STEPS = 256, 30


def rate(options: list[str]) -> float:
    size = ["--train-size", str(STEPS * BATCH), "--test-size", "64"]
    script = [str(ROOT / "examples" / "cnn.py"), "--epochs", "1", "--log-every", "5", *size]
    return samples_per_s(run([*PACELINE, "run", "-n", "2", "--quiet", *options, *script]), BATCH, STEPS, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the overhead of --noise-scale.")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sides = {"with": partial(rate, ["--noise-scale"]), "without": partial(rate, [])}
    figures = in_turn(sides, args.rounds, "samples/s")
    print(f"with / without: {ratio(figures['with'], figures['without'])}   aim 0.99")


if __name__ == "__main__":
    main()
