"""Overhead of comparing weights and batches between workers, in a step of examples/cnn.py and examples/gpt.py.

    python benchmarks/weight_check.py                  # two workers on CPUs, a few minutes
    python benchmarks/weight_check.py --device cuda    # two workers on one GPU

A run compares weights and batches in six of 200 steps ("looks"), and their overhead is below the noise of the timers.
So one run alternates blocks of steps without a look and blocks with a look in every step; the overhead of a look is
then scaled to six looks in 200 steps. The work is also counted (32-bit words read in a look, bytes added to a
backward), and a look is timed separately, in CPU or GPU seconds. A look sends no extra message
(tests/strategies/test_agreement.py). Aim: 0.5 % of a step, on average over 200 steps.

Figures: two CPU cores, 0.13 to 0.23 %. One H200: CNN (10 ms a step) 0.50 and 1.21 % in two runs, GPT (72 ms a step)
0.17 %. A look takes 1 to 2 ms of the GPU, most of it launches of kernels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from side_by_side import PACELINE, ROOT, ratio, run

sys.path.insert(0, str(ROOT / "examples"))
import cnn
import gpt
from torch.utils.data import DataLoader, TensorDataset

from paceline.agreement import watched
from paceline.agreement.digest import digest, parts

MODELS = ("cnn", "gpt")
STEPS = 200
LOOKS = sum(watched.is_due(step) for step in range(STEPS))
RIDERS = 8 * 8  # bytes: two numbers for each of four ledgers


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the overhead of comparing weights and batches.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--batch-size", type=int, help="batch size (default: 256 pictures, 64 texts or 16 on a CPU)")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of each kind")
    parser.add_argument("--steps", type=int, default=6, help="steps in a block")
    parser.add_argument("--inside", choices=MODELS, help=argparse.SUPPRESS)  # as a script on the workers
    args = parser.parse_args()
    if args.inside:
        train_in_blocks(args)
        return
    for name in args.models:
        batch = args.batch_size or {"cnn": (256, 256), "gpt": (16, 64)}[name][args.device == "cuda"]
        options = ["--inside", name, "--device", args.device, "--batch-size", str(batch)]
        options += ["--blocks", str(args.blocks), "--steps", str(args.steps)]
        print(f"{name}, batch {batch}, 2 workers, {args.device}", flush=True)
        lines = run([*PACELINE, "run", "-n", "2", "--quiet", __file__, *options])
        blocks = [line.text.split() for line in lines if line.text.startswith("block ")]
        looking = [float(seconds) for _, kind, seconds in blocks if kind == "looking"]
        without = [float(seconds) for _, kind, seconds in blocks if kind == "without"]
        each = ratio(looking, without)
        share = (each.median - 1) * LOOKS / STEPS
        print(f"  a step without: {statistics.median(without) * 1e3:.1f} ms; with a look in every step × {each}")
        print(f"  {LOOKS} looks in {STEPS} steps: {share:.3%} of a step on average   aim 0.5 %")
        count(name, batch, args.device)


def build(name: str, batch: int, device: str) -> tuple[torch.nn.Module, DataLoader]:
    """A model of the examples in its default size, and its batches."""
    torch.manual_seed(0)
    if name == "cnn":
        model, x, y = cnn.CNN(1, 28, 10, 0.0), torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    else:
        model = gpt.GPT(30_000, 80, 4, 256, 4, 0.0)
        x, y = torch.randint(30_000, (batch, 80)), torch.randint(30_000, (batch, 80))
    return model.to(device), DataLoader(TensorDataset(x, y), batch)


def train_in_blocks(args: argparse.Namespace) -> None:
    model, loader = build(args.inside, args.batch_size, args.device)
    step = stepper(model, loader, args.device)
    for block in range(-1, 2 * args.blocks):  # the first is a warm-up
        looking = block % 2 == 1
        watched.is_due = lambda count, looking=looking: looking
        began = time.perf_counter()
        for _ in range(args.steps if block >= 0 else 4):
            step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        if block >= 0:
            print("block", "looking" if looking else "without", (time.perf_counter() - began) / args.steps, flush=True)


def stepper(model: torch.nn.Module, loader: DataLoader, device: str) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)).flatten(0, -2), y.to(device).flatten()).backward()
            optimizer.step()

    return step


def count(name: str, batch: int, device: str) -> None:
    """The work and time of a look, and the time of a step on a worker's half of the batch, in this process."""
    model, loader = build(name, batch, device)
    x = next(iter(loader))[0].to(device)
    words, given = (sum(p.numel() for t in tensors for p in parts(t)) for tensors in (model.parameters(), [x]))
    print(
        f"  a look reads {words} words of weights and {given} of the batch: "
        f"{(words + given) * LOOKS / STEPS:.0f} words a step on average; {RIDERS} bytes ride on each backward"
    )
    known = watched.Watched(0, name)

    def look() -> None:
        weights = known.weights(model)
        watched.layout(weights)
        digest(tensor for _, tensor in weights)
        watched.arguments(((x,), {}))

    step = stepper(model, build(name, batch // 2, device)[1], device)
    one, whole = timed(look, device), timed(step, device)
    clock = "of the GPU" if device == "cuda" else "of one core"
    print(
        f"  time {clock}: a look {one * 1e3:.3f} ms, a step on half of the batch {whole * 1e3:.3f} ms: "
        f"{one / whole * LOOKS / STEPS:.3%} on average"
    )


def timed(work: Callable[[], None], device: str, rounds: int = 15) -> float:
    """Device seconds, or CPU seconds of this process: the median of several rounds."""
    seconds = []
    torch.set_num_threads(1)
    for _ in range(rounds + 3):
        if device == "cuda":
            began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            began.record()
            work()
            ended.record()
            torch.cuda.synchronize()
            seconds.append(began.elapsed_time(ended) / 1e3)
        else:
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
    return statistics.median(seconds[3:])


if __name__ == "__main__":
    main()
