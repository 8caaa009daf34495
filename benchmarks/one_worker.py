"""Cost of one worker on a launch-bound script: `paceline run -n 1` against plain python, in steps per second.

    PYTHONPATH=src:.gpu-site python3 benchmarks/one_worker.py      # on a GPU; about five minutes
    python benchmarks/one_worker.py --rounds 5 --small             # on CPU cores, to try it

The script is benchmarks/gpt_trainer.py: an eager GPT without a DataLoader, whose step is a few hundred kernel launches.
It measures its own steps, in blocks of ten, and prints the median and the fastest block. Sides alternate; a ratio is
the median over rounds (smallest – largest). The fastest blocks are those that nothing else on the host disturbed.

What a worker adds to a step, each alone: benchmarks/seams.py --gpt.

Figures, one H200, torch 2.11, Python 3.12, `--rounds 9 --steps 300`: median block 1.006 (0.872 – 1.063), fastest block
0.900 (0.762 – 1.170), where plain python itself gave 60 to 80 steps/s. Seams installed and removed in one process
(benchmarks/seams.py --gpt): 0.071 ms more in a step of 14.4 ms, 0.996. The aim is 0.99.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial

from side_by_side import PACELINE, ROOT, in_turn, ratio, run

SCRIPT = str(ROOT / "benchmarks" / "gpt_trainer.py")
SMALL = ["--layers", "2", "--width", "64", "--tokens", "32", "--words", "256", "--batch-size", "4"]
SIDES = {"paceline": [*PACELINE, "run", "-n", "1", "--quiet", SCRIPT], "python": [sys.executable, SCRIPT]}
STEP = re.compile(r"step: ([\d.]+) ms \(([\d.]+) - ")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare one worker with plain python on a launch-bound script.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--small", action="store_true", help="a model for CPU cores")
    args = parser.parse_args()
    options = [*(SMALL if args.small else ["--batch-size", "16"]), "--steps", str(args.steps)]
    fastest: dict[str, list[float]] = {side: [] for side in SIDES}

    def measure(side: str) -> float:
        found = STEP.match(run([*SIDES[side], *options])[-1].text)
        assert found is not None
        fastest[side].append(1000 / float(found[2]))
        return 1000 / float(found[1])

    figures = in_turn({side: partial(measure, side) for side in SIDES}, args.rounds, "steps/s")
    print(f"paceline / python, median block: {ratio(figures['paceline'], figures['python'])}")
    print(f"paceline / python, fastest block: {ratio(fastest['paceline'], fastest['python'])}")


if __name__ == "__main__":
    main()
