"""The bubble of a pipeline of two stages: predicted, and measured against one worker.

    python benchmarks/pipeline_bubble.py                 # two workers, one thread each; about 4 minutes
    python benchmarks/pipeline_bubble.py --chunks 1 4 --rounds 3

Trains eight equal residual blocks, so that the stages are even, with the loss inside the last stage. All schedules and
numbers of micro-batches run in one process tree, one after the other in each round, and every other round in reverse.
The measured bubble is the share of the time of forwards and backwards in which a worker waits for the other: it also
contains the messages between the stages. Predicted: (S−1)/(M·P+S−1), with P parts of the model for each worker (2 if
interleaved). `speed-up` is the time in which one worker computes the same micro-batches, while the other one does the
same beside it, divided by the time of the pipeline; predicted is 2 × (1 − bubble). Only an idle machine shows it: other
programs slow down two busy workers more than two that wait for each other.

Figures, two cores of a VM with a load average of 5 to 7, 7 rounds (measured bubble with 1, 2, 4 and 8 micro-batches):
gpipe 50, 36, 29, 25 %; 1f1b 50, 32, 27, 24 %; interleaved 51, 28, 25, 26 %. Predicted: 50, 33, 20, 11 %;
interleaved 50, 20, 11, 6 %.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from side_by_side import PACELINE, in_turn, ratio, run
from torch import Tensor, nn

from paceline.script.seams.api import current
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelined.orders import bubble
from paceline.strategies.pipelined.train_step import TrainStep

SCHEDULES = ("gpipe", "1f1b", "interleaved")
PARTS = 2  # of the model for each worker, if interleaved


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU())
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.out(self.inner(x))
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the bubbles of a pipeline with the predicted ones.")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="steps of a side in a round")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure(options)
        return
    sizes = ["--rounds", options.rounds, "--steps", options.steps, "--width", options.width, "--batch", options.batch]
    arguments = map(str, [*sizes, "--chunks", *options.chunks])
    command = [*PACELINE, "run", "-n", "2", "--quiet", "--threads", "1", "--strategy", "pipeline(stages=2)"]
    for line in run([*command, __file__, "--inside", *arguments]):
        print(line.text)


def measure(options: argparse.Namespace) -> None:
    """On each worker: every side once in each round."""
    torch.manual_seed(0)
    stage: Any = current()
    strategy: Pipeline = stage.strategy
    x = torch.randn(options.batch, options.width)
    y = torch.randn(options.batch, options.width)
    model = nn.Sequential(*(Block(options.width) for _ in range(8)))
    waits: dict[str, list[float]] = {}
    sides: dict[str, Callable[[], float]] = {}
    for chunks in options.chunks:
        sides[f"alone {chunks}"] = alone(stage, copy.deepcopy(model), x, y, chunks, options.steps)
        for schedule in SCHEDULES:
            name = f"{schedule} {chunks}"
            waits[name] = []
            sides[name] = pipelined(strategy, schedule, chunks, copy.deepcopy(model), x, y, options.steps, waits[name])
    for side in sides.values():
        side()
    for each in waits.values():
        each.clear()
    figures = in_turn(sides, options.rounds, "s")
    print("schedule     chunks  predicted  measured              speed-up: predicted, measured")
    for schedule in SCHEDULES:
        for chunks in options.chunks:
            name = f"{schedule} {chunks}"
            expected = bubble(2, chunks, PARTS if schedule == "interleaved" else 1)
            faster = ratio(figures[f"alone {chunks}"], figures[name])
            head = f"{schedule:12} {chunks:6} {expected:9.0%}   {shares(waits[name]):21}"
            print(f"{head} {2 * (1 - expected):.3f}, {faster}")


def shares(values: list[float]) -> str:
    return f"{statistics.median(values):.0%} ({min(values):.0%} – {max(values):.0%})"


def alone(stage: Any, model: nn.Module, x: Tensor, y: Tensor, chunks: int, steps: int) -> Callable[[], float]:
    """Seconds of a step in which each worker computes the whole model, in micro-batches."""

    def step() -> None:
        for rows, target in zip(x.chunk(chunks), y.chunk(chunks), strict=True):
            (nn.functional.mse_loss(model(rows), target) / chunks).backward()
        model.zero_grad()

    def side() -> float:
        with stage.beside(), stage.inside():
            stage.group.gather_vectors(torch.zeros(1), "the other worker")
            return mean_over_workers(stage, [seconds(step) for _ in range(steps)])

    return side


def pipelined(
    strategy: Pipeline,
    schedule: str,
    chunks: int,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    steps: int,
    waits: list[float],
) -> Callable[[], float]:
    """Seconds in which the stages compute a step; notes the share of the time that they wait."""
    train = TrainStep(strategy, model, nn.functional.mse_loss)

    def side() -> float:
        strategy.chunks, strategy.asked_schedule = chunks, schedule
        strategy.parts = PARTS if schedule == "interleaved" else 1
        clock, found, idle = strategy.clock, list[float](), list[float]()
        for _ in range(steps):
            train(x, y)
            found.append(clock.total)
            idle.append(clock.idle / clock.total)
            clock.total = clock.idle = 0.0
            model.zero_grad()
        waits.append(mean_over_workers(strategy.stage, idle))
        return mean_over_workers(strategy.stage, found)

    return side


def seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def mean_over_workers(stage: Any, values: list[float]) -> float:
    """The mean of the workers' medians."""
    mine = torch.tensor([statistics.median(values)], dtype=torch.float64)
    return float(stage.group.gather_vectors(mine, "the figures").mean())


if __name__ == "__main__":
    main()
