"""Overhead of `paceline profile` in untraced steps: its step times against the step times of `paceline run`.

    python benchmarks/profile_overhead.py                       # examples/cnn.py on one worker and on two
    python benchmarks/profile_overhead.py --example gpt --workers 1
    python benchmarks/profile_overhead.py --rounds 2 --steps 20 --workers 1      # smoke test

Both sides run the same script with the same seed and the same number of steps, and alternate. `profile` traces a few
steps in the middle and lets the script run to its end (--to-the-end). Steps before the trace show the overhead of the
waiting capture and of the sampler; steps after the trace show what the trace leaves behind. Step times come from both
records, of rank 0. Left out on both sides: the warm-up steps, the traced steps, the step before them, in which the
profiler starts, and the step after them, in which the trace is written.

A round's figure is the median step; the verdict is the median of the rounds' ratios (smallest – largest). The aim is
1.01 at most. On a busy machine the medians differ by more than that from run to run: look at the spread first.

Figures, 2 cores of a VM, the CNN on one worker, 7 rounds: 1.006 (0.842 – 1.399) before the trace and 0.909 (0.687 –
1.125) after the trace: the overhead is below the noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from side_by_side import PACELINE, ROOT, Ratio, ratio

from paceline.record import Step, read_steps

AIM = 1.01
BATCH = {"cnn": 256, "gpt": 64}
TRACED = 5
PARTS = ("before", "after")


def measure(verb: Sequence[str], script: Sequence[str]) -> tuple[list[Step], dict[str, int]]:
    """The steps of rank 0, and the verb's JSON document. A command that fails ends the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*PACELINE, *verb, "--seed", "0", "--json", "--quiet", "--record", folder, *script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
        told = json.loads(done.stdout)
        return read_steps(Path(told["record"]), 0), told


def medians(steps: Sequence[Step], warm_up: int, first: int, last: int) -> dict[str, float]:
    """The median step before and after the trace of the steps from `first` to `last`, without evaluation time."""
    kept = {
        "before": [step.total - step.evaluation for step in steps if warm_up < step.step < first - 1],
        "after": [step.total - step.evaluation for step in steps if step.step > last + 1],
    }
    return {part: statistics.median(seconds) for part, seconds in kept.items()}


def compare(script: list[str], workers: int, *, steps: int, warm_up: int, rounds: int) -> dict[str, Ratio]:
    """The ratio of the median steps of `profile` and `run`, before and after the trace."""
    each = ["-n", str(workers)]
    # The last step of `--warm-up` already runs under the profiler.
    begin = warm_up + steps + 2
    sides = {
        "run": ["run", *each],
        "profile": ["profile", *each, "--to-the-end", "--steps", str(TRACED), "--warm-up", str(begin)],
    }
    figures: dict[str, dict[str, list[float]]] = {part: {side: [] for side in sides} for part in PARTS}
    for number in range(rounds):
        found = {side: measure(sides[side], script) for side in (sides if number % 2 == 0 else reversed(sides))}
        _, told = found["profile"]
        for side, (made, _) in found.items():
            for part, seconds in medians(made, warm_up, told["first"], told["last"]).items():
                figures[part][side].append(seconds)
        shown = " · ".join(
            f"{part} {figures[part]['profile'][-1] * 1e3:.3f} against {figures[part]['run'][-1] * 1e3:.3f} ms"
            for part in PARTS
        )
        print(f"  round {number + 1}: {shown}", flush=True)
    return {part: ratio(figures[part]["profile"], figures[part]["run"]) for part in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", choices=sorted(BATCH), default="cnn")
    parser.add_argument("--workers", default="1,2", help="comma-separated numbers of workers, each compared separately")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="measured steps before the trace, and after the trace")
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument(
        "--batch-size", type=int, help="batch size; a small one makes short steps, which show an overhead best"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the ratios to this file")
    args = parser.parse_args()
    batch = args.batch_size or BATCH[args.example]
    total = args.warm_up + 2 * args.steps + TRACED + 4
    sizes = f"--epochs 1 --batch-size {batch} --train-size {total * batch} --test-size {batch}".split()
    script = [str(ROOT / "examples" / f"{args.example}.py"), *sizes]
    verdicts = {}
    for workers in map(int, args.workers.split(",")):
        print(f"{args.example}, {workers} worker{'s' if workers > 1 else ''}, batch {batch}: {total} steps a run")
        found = compare(script, workers, steps=args.steps, warm_up=args.warm_up, rounds=args.rounds)
        for part, of in found.items():
            print(f"  profile / run, {part} the trace: {of}{'' if of.median <= AIM else f', and the aim is {AIM}'}")
        verdicts[workers] = {part: [of.median, of.low, of.high] for part, of in found.items()}
    if args.json:
        Path(args.json).write_text(json.dumps(verdicts, indent=1))


if __name__ == "__main__":
    main()
