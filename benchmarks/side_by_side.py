"""Shared code of the benchmarks: runs two sides in alternation, and computes the ratio of each round with its spread.

A round runs every side once. Every other round reverses the order, so that a machine whose speed drifts does not favour
a side. The verdict is the median of the rounds' ratios, with the smallest and the largest.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACELINE = [sys.executable, "-m", "paceline"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEP = re.compile(r"epoch (\d+) step (\d+) ")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Ratio:
    """The first side's figures divided by the second side's, over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} – {self.high:.3f})"


def ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """The ratio of figures from the same rounds."""
    each = [a / b for a, b in zip(first, second, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


def in_turn(sides: Mapping[str, Callable[[], float]], rounds: int, unit: str) -> dict[str, list[float]]:
    """Each side's figure in each round. Prints every round when it ends."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides)
        for name in names if number % 2 == 0 else reversed(names):
            figures[name].append(sides[name]())
        shown = " · ".join(f"{name} {figures[name][-1]:.4g}" for name in names)
        print(f"  round {number + 1}: {shown} {unit}", flush=True)
    return figures


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a script printed, and its arrival time."""

    text: str
    at: float


def run(command: Sequence[str], env: Mapping[str, str] | None = None, files: Path | None = None) -> list[Line]:
    """Runs a command to its end, and records the arrival time of each line of its standard output. The command runs in
    a temporary folder, a copy of `files` if given, which also holds its records. A command that fails ends the
    benchmark with its error."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        if files is not None:
            shutil.copytree(files, folder, dirs_exist_ok=True)
        lines = []
        paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder, text=True
        ) as process:
            assert process.stdout is not None
            lines.extend(Line(text.rstrip("\n"), time.perf_counter()) for text in process.stdout)
        if process.returncode:
            errors.seek(0)
            raise SystemExit(
                f"{' '.join(command)}\nended with exit code {process.returncode}:\n{errors.read()[-3000:]}"
            )
    return lines


def samples_per_s(lines: Sequence[Line], batch: int, steps_per_epoch: int, warm_up: int) -> float:
    """From the lines "epoch E step S …" that a script prints, without the first `warm_up` steps: the median over the
    spans between two consecutive lines of one epoch.

    So neither the start nor the end of a run counts, a span in which the machine was busy has no effect, and no side
    needs to be edited."""
    found = []
    for line in lines:
        if match := STEP.match(line.text):
            found.append(((int(match[1]) - 1) * steps_per_epoch + int(match[2]), line.at))
    kept = [(step, at) for step, at in found if step >= warm_up]
    rates = [
        (step - before) * batch / (at - began)
        for (before, began), (step, at) in itertools.pairwise(kept)
        if (before - 1) // steps_per_epoch == (step - 1) // steps_per_epoch
    ]
    return statistics.median(rates)


def largest_difference(lines: Sequence[Line], others: Sequence[Line]) -> float:
    """The largest relative difference between the numbers that two runs printed."""
    pairs = [
        (float(a), float(b))
        for line, other in zip(lines, others, strict=True)
        for a, b in zip(NUMBER.findall(line.text), NUMBER.findall(other.text), strict=True)
    ]
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in pairs)
