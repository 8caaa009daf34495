"""Step time and peak memory of a language model with 50,000 words: `paceline run` against DDP, on CPUs.

    python benchmarks/large_vocabulary.py                # four workers, about five minutes on two cores
    python benchmarks/large_vocabulary.py --workers 2

Its logits are by far the largest tensors: a worker that held those of the whole batch would need N times DDP's memory,
and would compute the loss N times. The Paceline side is an ordinary script; the DDP side is the same loop with a
process group, DistributedDataParallel and a slice of the batch. Both print the loss of each
step, and each worker's peak memory (VmHWM, from the third step on) above that before the first step. Sides alternate;
ratios are medians over rounds (smallest – largest). Aims: memory ≤ 1.1 × DDP's, steps ≥ 1.0 × DDP's speed.

Figures, four workers on two idle cores, 3 rounds: speed 1.418 (1.365 – 1.550) × DDP's, processor time of a step 0.636
(0.605 – 0.697) × DDP's, memory 1.034 (1.034 – 1.187) × DDP's. Memory once more, while other programs used the cores:
1.025 (1.009 – 1.049), and 1.050 (1.049 – 1.050, 2 rounds) with the trim threshold of a host with 128 GiB (327 MiB a
worker), set by hand.

A worker's memory: a proof leaves up to 50 MiB that a step does not need, and returns it (`memory.return_freed`). Half
of the processor time of a step, 120 ms, was system time, with 50,000 page faults for logits and their gradients; on
huge pages (`launch/worker/allocator.py`) it is 68 ms, with 2,000 faults.
DDP prints the loss of rank 0's slice, `paceline run` that of the batch.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from side_by_side import PACELINE, TORCHRUN, ratio, run
from torch import nn

SHOWN = re.compile(r"(?:step (\d+) seconds (\S+) processor (\S+))|(?:peak (\S+))")


class Model(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(ids)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare `paceline run` with DDP on a large vocabulary.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--inside", choices=("script", "ddp"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        train(args, ddp=args.inside == "ddp")
        return
    sizes = [
        str(value)
        for name in ("words", "batch_size", "tokens", "steps")
        for value in (f"--{name.replace('_', '-')}", getattr(args, name))
    ]
    sides = {
        "paceline": [
            *PACELINE,
            "run",
            "-n",
            str(args.workers),
            "--oversubscribe",
            "--quiet",
            __file__,
            "--inside",
            "script",
            *sizes,
        ],
        "ddp": [*TORCHRUN, "--nproc-per-node", str(args.workers), __file__, "--inside", "ddp", *sizes],
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    memory: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds):
        for name in sides if number % 2 == 0 else reversed(sides):
            found = [SHOWN.search(line.text) for line in run(sides[name], {"OMP_NUM_THREADS": "1"})]
            seconds[name].append(statistics.median(float(m[2]) for m in found if m and m[2]))
            processor[name].append(statistics.median(float(m[3]) for m in found if m and m[3]))
            memory[name].append(max(float(m[4]) for m in found if m and m[4]))
        last = ", ".join(
            f"{name} {seconds[name][-1]:.2f} s a step, {processor[name][-1] * 1e3:.0f} ms of processor time, "
            f"{memory[name][-1] / 2**20:.0f} MiB"
            for name in sides
        )
        print(f"  round {number + 1}: {last}", flush=True)
    print(f"{args.workers} workers, {args.words} words, batch {args.batch_size} × {args.tokens}")
    print(f"  speed, paceline / DDP:  {ratio(seconds['ddp'], seconds['paceline'])}   aim 1.0")
    print(f"  processor time, paceline / DDP: {ratio(processor['paceline'], processor['ddp'])}")
    print(f"  memory, paceline / DDP: {ratio(memory['paceline'], memory['ddp'])}   aim 1.1")


def tell(line: str) -> None:
    """Prints a line in one write: all workers of DDP print to one pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(args: argparse.Namespace, *, ddp: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = Model(args.words, 32)
    rank, world = 0, 1
    if ddp:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        model = nn.parallel.DistributedDataParallel(model)
        weigh_as_one(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = resident()
    for step in range(args.steps):
        ids = torch.randint(0, args.words, (args.batch_size, args.tokens + 1))
        if ddp:
            ids = ids[rank::world]
        if step == 2:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak: start-up is not a step
        began, worked = time.perf_counter(), time.process_time()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, args.words), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del logits
        if step >= 2:
            seconds, processor = time.perf_counter() - began, time.process_time() - worked
            tell(f"step {step} seconds {seconds:.4f} processor {processor:.4f} loss {loss.item():.6f}")
    tell(f"peak {peak() - before}")
    if ddp:
        dist.destroy_process_group()


def weigh_as_one(workers: int) -> None:
    """On a busy machine Linux shares the processors between sessions. torchrun gives each worker a session of its own,
    and `paceline run` all its workers one: the sessions of the DDP side count as one, too."""
    group = Path("/proc/self/autogroup")
    if group.exists():
        group.write_text(str(round(math.log(workers, 1.25))))  # a nice level is a factor of 1.25


def resident() -> int:
    return _status("VmRSS")


def peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
