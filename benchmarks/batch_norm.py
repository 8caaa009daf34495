"""Overhead of batch norm over the whole batch, in a step of examples/resnet18.py's model: against `--mod bn=local`.

    python benchmarks/batch_norm.py                  # two workers on CPUs, a few minutes
    python benchmarks/batch_norm.py --device cuda    # two workers on one GPU

One run alternates both kinds of step, so that a machine whose speed drifts favours none. A round is the median step of
each kind in a block. The model has 20 batch norms, each of which exchanges one vector a direction. Aim: 3 % of a step.

Figures, aim not met. Two workers with one thread each on two idle cores, 5 rounds: 1.044 (1.002 – 1.078) of a step of
549 ms, and 1.048 (1.017 – 1.074) in processor time: the input's gradient is made in two passes where torch's own kernel
needs one, because it needs the sums of all workers first. That takes 18 ms in place of 12 for the largest layers.
Planes of 2×2 are summed in 0.15 ms instead of 0.8 ms. On 16 idle cores, 8 threads a worker: 1.160 (1.125 – 1.212) of a
step of 107 ms, formerly 1.274 (1.214 – 1.295), mostly because workers wait for each other 40 times a step. The 40
exchanges take 0.07 to 0.09 ms each. Two workers on one H200: 2.044 (1.851 – 2.219) of a step of 39 ms; they share one
GPU, and exchange through the host.

Tried and left out: gradients of inputs in parts that fit the cache, or by other operations, which take longer in most
sizes; statistics by vectorised sums in float32, in half of the time of torch's kernel, because they are not those of
one process to the last bit; the same in float64 on parts that fit the cache, because that takes 23.4 ms for the 20
layers, and torch's kernel 16.9 ms. Not tried: weight gradients of convolutions computed during the wait.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from side_by_side import PACELINE, ROOT, ratio, run

sys.path.insert(0, str(ROOT / "examples"))
from resnet18 import ResNet18

from paceline.script.seams import api

KINDS = ("whole", "local")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the overhead of batch norm over the whole batch.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=64, help="width and height of a picture")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="steps of each kind in a round")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # as a script on the workers
    args = parser.parse_args()
    if args.inside:
        train_in_turn(args)
        return
    options = [word for name in ("device", "batch_size", "size", "rounds", "steps") for word in _option(args, name)]
    print(f"ResNet-18, batch {args.batch_size}, {args.size}×{args.size}, 2 workers, {args.device}", flush=True)
    lines = run([*PACELINE, "run", "-n", "2", "--quiet", __file__, "--inside", *options])
    rounds = [line.text.split()[1:] for line in lines if line.text.startswith("round ")]
    whole, local, whole_processor, local_processor = ([float(figures[i]) for figures in rounds] for i in range(4))
    print(f"  a step with bn=local: {statistics.median(local) * 1e3:.1f} ms")
    print(f"  whole batch ÷ local: {ratio(whole, local)}   aim ≤ 1.03")
    print(f"  the same in processor time of worker 0: {ratio(whole_processor, local_processor)}")


def _option(args: argparse.Namespace, name: str) -> list[str]:
    return [f"--{name.replace('_', '-')}", str(getattr(args, name))]


def train_in_turn(args: argparse.Namespace) -> None:
    """Runs on every worker. Prints the median seconds, and the median seconds of processor time, of both kinds of step,
    a line a round."""
    stage = api.current()
    assert stage is not None
    torch.manual_seed(0)
    model = ResNet18(10).to(args.device)
    x = torch.randn(args.batch_size, 3, args.size, args.size, device=args.device)
    y = torch.randint(10, (args.batch_size,), device=args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(args.rounds + 1):  # the first round is the warm-up
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        processor: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for step in range(args.steps * 2):
            kind = KINDS[(step + number) % 2]
            stage.views.norms_see_batch = kind == "whole"
            began, worked = time.perf_counter(), time.process_time()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            seconds[kind].append(time.perf_counter() - began)
            processor[kind].append(time.process_time() - worked)
        if number:
            medians = [statistics.median(figures[kind]) for figures in (seconds, processor) for kind in KINDS]
            print("round", *medians, flush=True)


if __name__ == "__main__":
    main()
