"""Compares the noise scale with the measured critical batch size. Writes critical_batch.json and critical_batch.md.

    python benchmarks/critical_batch.py --data DIR                             # CIFAR-10
    python benchmarks/critical_batch.py --data DIR --minutes 9 --into a.json   # 9 minutes; repeat to continue
    python benchmarks/critical_batch.py --data DIR --only 64,128 --into b.json # these batch sizes (or `noise`)
    python benchmarks/critical_batch.py --merge a.json b.json
    python benchmarks/critical_batch.py --small                                # smoke test on a CPU

Measured: the number of steps in which benchmarks/residual_net.py (no batch norm, SGD with momentum) reaches a test
accuracy, at batch sizes from 64 to 8192, each with the best of several learning rates. A learning rate is abandoned
after more steps than the best one so far, or after FEW steps if none has reached the accuracy yet.
S = S_min · (1 + B_crit / B) is fitted to these steps.
Predicted: the noise scale from `paceline run --noise-scale` on the way to the same accuracy, from four seeds, at a
batch of 4 × 512, where a single step is enough to separate the gradient from its noise. The learning rate is CALM times
the best one: at the best learning rate, close to divergence, the weights oscillate, and the oscillation dominates the
gradient. Aim: measured and predicted differ by at most a factor of two.

Figures, one H200, torch 2.11: measured 332 (311 – 378 with one batch left out), predicted 407 (241 – 634): 1.23. With
4 × 128 and the quotient of means over all steps, predicted was 108: 0.33.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from in_parts import Kept, carry_out, unpacked
from side_by_side import PACELINE, ROOT

from paceline.converge.noise.critical_batch import critical_batch
from paceline.launch import Zygote
from paceline.record.folder import log_path
from paceline.record.noise import Noise, read_noise
from paceline.settings import RunSettings
from paceline.trials.core.bench import Bench, Budget

NET = str(ROOT / "benchmarks" / "residual_net.py")
REACHED = re.compile(r"reached [\d.]+ after (\d+) steps")
PARTS, NOISE_SEEDS = 4, 4
CALM = 0.25
FEW = 500  # minimum steps for every batch size, whatever the number of epochs
STEPS, NOISE = "steps", "noise"  # the two tables


class Case:
    """Sizes of the benchmark, or of the smoke test."""

    def __init__(self, small: bool, target: float | None, rates: str | None) -> None:
        self.batches = [16, 32, 64] if small else [64 << k for k in range(8)]
        self.noise_batch = 32 if small else 2048
        usual = "0.01,0.03" if small else "0.04,0.08,0.02,0.16,0.01,0.32,0.005"  # the most likely first
        self.rates = (rates or usual).split(",")
        self.target = target or (0.3 if small else 0.5)
        self.train, test, self.epochs, every = (512, 100, 3, 64) if small else (30_000, 2_000, 30, 2048)
        sizes = {"--train-size": self.train, "--test-size": test, "--every": every, "--until": self.target}
        self.script = (
            "--shape",
            "cifar",
            "--optimizer",
            "sgd",
            *(str(part) for pair in sizes.items() for part in pair),
        )

    def arguments(
        self, batch: int, rate: str, data: Path | None, *, parts: int = 1, best: int | None = None
    ) -> tuple[str, ...]:
        """Script arguments: train to the target, but for no more steps than the best learning rate so far needed."""
        epochs = max(self.epochs, math.ceil(FEW * batch / self.train))
        size = ("--batch-size", str(batch // parts), "--lr", rate, "--accumulate", str(parts), "--epochs", str(epochs))
        limit = ("--at-most", str(best)) if best else ()
        return (*self.script, *size, *limit, *(("--data", str(data)) if data else ()))


class Trials:
    """Measures one figure at a time."""

    def __init__(self, case: Case, kept: Kept, data: Path | None, records: Path) -> None:
        self.case, self.kept, self.data, self.records = case, kept, data, records
        self.zygote = Zygote.start()
        settings = RunSettings(script=NET, mods=("resident",), seed=1)
        self.bench = Bench(settings, zygote=self.zygote, record=records, budget=Budget(None), verb="converge")

    def __call__(self, table: str, row: str, key: str) -> tuple[dict[str, Any], str]:
        return self._noise(int(key)) if table == NOISE else self._steps(int(row), key)

    def _steps(self, batch: int, rate: str) -> tuple[dict[str, Any], str]:
        best, _ = best_rates(self.kept).get(batch, (None, ""))
        arguments = self.case.arguments(batch, rate, self.data, best=best)
        measured = self.bench.measure(f"{batch}.{rate}", arguments=arguments)
        text = log_path(Path(measured.record), 0).read_text()
        reached = REACHED.search(text)
        steps = int(reached[1]) if reached else None
        last = (text.strip().splitlines() or ["nothing"])[-1]
        return {"steps": steps, "seconds": measured.seconds}, f"{steps} steps" if steps else f"not reached ({last})"

    def _noise(self, seed: int) -> tuple[dict[str, Any], str]:
        """The noise scale, measured by the verb as a user types it."""
        _, best = best_rates(self.kept).get(self.case.noise_batch, (0, self.case.rates[0]))
        rate = f"{float(best) * CALM:g}"
        script = [NET, *self.case.arguments(self.case.noise_batch, rate, self.data, parts=PARTS)]
        script += ["--seed", str(seed)]
        command = ["run", "--noise-scale", "--quiet", "--json", "--mod", "resident"]
        folder = self.records / f"noise{seed}"
        done = subprocess.run(
            [*PACELINE, *command, "--record", str(folder), *script], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        document = json.loads(done.stdout[done.stdout.index(b"{") :])
        lines = read_noise(Path(document["record"]))
        scale = document["noise_scale"]
        return {"lines": msgspec.to_builtins(lines), "rate": rate}, f"noise scale {scale and scale.get('batch')}"


def best_rates(kept: Kept) -> dict[int, tuple[int, str]]:
    """For each batch size that reached the target: the fewest steps, and their learning rate."""
    found = {}
    for batch, rates in kept.tables.get(STEPS, {}).items():
        reached = [(value["steps"], rate) for rate, value in rates.items() if value["steps"]]
        if reached:
            found[int(batch)] = min(reached)
    return dict(sorted(found.items()))


def fit(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(S_min, B_crit) of S = S_min · (1 + B_crit / B), by least squares of logarithms."""

    def misfit(critical: float) -> tuple[float, float]:
        logs = [math.log(steps / (1 + critical / batch)) for batch, steps in points]
        mean = math.fsum(logs) / len(logs)
        return math.fsum((value - mean) ** 2 for value in logs), math.exp(mean)

    tried = [2 ** (k / 32) for k in range(32 * 20)]  # 1 to a million
    best = min(tried, key=lambda critical: misfit(critical)[0])
    return misfit(best)[1], best


def told(kept: Kept) -> list[str]:
    """The text of the page, from the figures so far."""
    best = best_rates(kept)
    lines = [
        "# The critical batch",
        "",
        "Made by `benchmarks/critical_batch.py`; its docstring describes the method.",
        "",
    ]
    lines += ["| batch | fewest steps to the target | samples | at rate | fitted |", "|---|---|---|---|---|"]
    points = [(float(batch), float(steps)) for batch, (steps, _) in best.items()]
    least, critical = fit(points) if len(points) >= 3 else (0.0, 0.0)
    for batch, (steps, rate) in best.items():
        fitted = f"{least * (1 + critical / batch):,.0f}" if critical else ""
        lines.append(f"| {batch:,} | {steps:,} | {steps * batch:,} | {rate} | {fitted} |")
    lines.append("")
    if critical:
        others = (
            [fit([point for point in points if point is not left])[1] for left in points] if len(points) > 3 else []
        )
        around = f" ({min(others):,.0f} to {max(others):,.0f} with one batch left out)" if others else ""
        lines.append(f"Measured: S_min {least:,.0f} steps, critical batch {critical:,.0f}{around}.")
    measured = [msgspec.convert(line, Noise) for run in kept.tables.get(NOISE, {}).values()
                for value in run.values() for line in value["lines"]]  # fmt: skip
    for part, words in ((1.0, "all"), (0.5, "the later half")) if measured else ():
        found = critical_batch(measured, last=part)
        ratio = f", {found.batch / critical:.2f} of the measured one" if critical else ""
        scale = f"{found.batch:,.0f} ({found.low:,.0f} to {found.high:,.0f})"
        lines.append(f"Predicted by the noise of {words} of the steps: {scale}{ratio}.")
    return lines


def write_page(kept: Kept) -> None:
    path = kept.path.with_suffix(".md")
    lines = told(kept)
    path.write_text("\n".join(lines).rstrip() + "\n")
    print("\n".join(lines[4:]), f"\nwrote {path}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the noise scale with the measured critical batch size.")
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--only", metavar="BATCHES", help="comma-separated batch sizes; noise: the noise scale")
    parser.add_argument("--rates", help="comma-separated learning rates to try")
    parser.add_argument("--target", type=float, help="test accuracy to reach (default: 0.5)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit; a trial starts only if it fits")
    parser.add_argument("--small", action="store_true", help="smoke test: a few steps on drawn pictures")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks" / "critical_batch.json")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", help="merge these files into --into without running trials"
    )
    args = parser.parse_args()
    kept, case = Kept(args.into.resolve()), Case(args.small, args.target, args.rates)
    if args.merge:
        kept.merge(args.merge)
        write_page(kept)
        return
    if args.data is None and not args.small:
        parser.error("--data is missing: give --data DIR, or --small")
    kept.claim(" ".join([*case.script, "real" if args.data else "drawn"]))
    chosen = args.only.split(",") if args.only else [*map(str, case.batches), NOISE]
    wanted = [(STEPS, batch, rate) for batch in chosen if batch != NOISE for rate in case.rates]
    # Last, because the noise trials need the best learning rate.
    wanted += [(NOISE, str(case.noise_batch), str(seed)) for seed in range(NOISE_SEEDS) if NOISE in chosen]
    with unpacked(args.data) as data, tempfile.TemporaryDirectory() as records:
        measure = Trials(case, kept, data, Path(records))
        try:
            carry_out(kept, wanted, measure, args.minutes * 60)
        finally:
            measure.zygote.close()
            write_page(kept)


if __name__ == "__main__":
    main()
