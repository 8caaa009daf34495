"""Cost of the proof: the first two calls and the later steps of five models on 2 workers, in two checkouts.

    git worktree add /tmp/before COMMIT                    # a checkout of the commit to compare with
    python benchmarks/proof.py --before /tmp/before        # about 45 minutes on 2 cores, most of them for BERT
    python benchmarks/proof.py --before /tmp/before --models cnn gpt --rounds 3 --steps 20

A round runs each model once in both checkouts; every other round reverses the order. The script is
benchmarks/proof_steps.py of this checkout on both sides. The script prints the time of its steps 1 and 2, each with
forward, backward and update, and the median time of the steps of its last half. A ratio is this checkout's time
divided by the other's: the median over rounds (smallest – largest). The aim: at most 1.5 for the first two steps
together, and 1.003 for later steps.
"""

from __future__ import annotations

import argparse
import os
import re
from functools import partial
from pathlib import Path

from side_by_side import PACELINE, ROOT, in_turn, ratio, run

SCRIPT = str(ROOT / "benchmarks" / "proof_steps.py")
# The number of steps: enough for a median, few enough for the large models.
MODELS = {"cnn": 80, "gpt": 80, "resnet18": 80, "bert": 8, "resnet50": 12}
TIMES = re.compile(r"first ([\d.]+) s, second ([\d.]+) s, later ([\d.]+) ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the cost of the proof in two checkouts.")
    parser.add_argument("--before", type=Path, required=True, help="Checkout of the commit to compare with.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="Steps of a run (default: 80, or 8 to 12 for large models).")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    sides = {"now": ROOT / "src", "before": args.before.resolve() / "src"}
    if not (sides["before"] / "paceline").is_dir():
        parser.error(f"--before {args.before} is not a checkout: it has no folder src/paceline.")
    for model in args.models:
        steps = args.steps or MODELS[model]
        command = [*PACELINE, "run", "-n", str(args.workers), "--quiet", SCRIPT, model, str(steps)]
        later: dict[str, list[float]] = {side: [] for side in sides}

        def measure(side: str, command: list[str] = command, later: dict[str, list[float]] = later) -> float:
            found = TIMES.match(run(command, {"PYTHONPATH": os.fspath(sides[side])})[-1].text)
            assert found is not None
            later[side].append(float(found[3]))
            return float(found[1]) + float(found[2])

        print(f"{model}, {steps} steps:")
        first = in_turn({side: partial(measure, side) for side in sides}, args.rounds, "s for steps 1 and 2")
        print(f"{model}, now / before, steps 1 and 2: {ratio(first['now'], first['before'])}")
        print(f"{model}, now / before, a later step:  {ratio(later['now'], later['before'])}", flush=True)


if __name__ == "__main__":
    main()
