"""Step time and peak memory of a language model with 50,000 words: `paceline run` against DDP, on CPUs.

    python benchmarks/large_vocabulary.py                # four workers, about five minutes on two cores
    python benchmarks/large_vocabulary.py --workers 2

Its logits are by far the largest tensors: a worker that held those of the whole batch would need N times DDP's memory,
and would compute the loss N times. The Paceline side is an ordinary script; the DDP side is the same loop with a
process group, DistributedDataParallel and a slice of the batch. Both print the loss of each
step, and each worker's peak memory (VmHWM, from the third step on) above that before the first step. Sides alternate;
ratios are medians over rounds (smallest – largest). Aims: memory ≤ 1.1 × DDP's, steps ≥ 1.0 × DDP's speed.

Figures, four workers on two cores: memory 1.095 (1.069 – 1.124) × DDP's, speed 0.991 (0.886 – 1.001) × DDP's. Since
then a worker keeps freed memory for its next step, up to 1 % of the host's for all workers: memory 1.123 (1.119 –
1.127) here, where that is 59 MiB a worker, and 1.476 (1.356 – 1.596) on a host with 128 GiB. With 24 MiB it would be
1.02, and a small CNN would take 5 % longer. DDP prints the loss of rank 0's slice, `paceline run` that of the batch.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from side_by_side import PACELINE, TORCHRUN, ratio, run
from torch import nn

SHOWN = re.compile(r"(?:step (\d+) seconds (\S+))|(?:peak (\S+))")


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
    memory: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(args.rounds):
        for name in sides if number % 2 == 0 else reversed(sides):
            found = [SHOWN.search(line.text) for line in run(sides[name], {"OMP_NUM_THREADS": "1"})]
            seconds[name].append(statistics.median(float(m[2]) for m in found if m and m[2]))
            memory[name].append(max(float(m[3]) for m in found if m and m[3]))
        last = ", ".join(
            f"{name} {seconds[name][-1]:.2f} s a step, {memory[name][-1] / 2**20:.0f} MiB" for name in sides
        )
        print(f"  round {number + 1}: {last}", flush=True)
    print(f"{args.workers} workers, {args.words} words, batch {args.batch_size} × {args.tokens}")
    print(f"  speed, paceline / DDP:  {ratio(seconds['ddp'], seconds['paceline'])}   aim 1.0")
    print(f"  memory, paceline / DDP: {ratio(memory['paceline'], memory['ddp'])}   aim 1.1")


def train(args: argparse.Namespace, *, ddp: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = Model(args.words, 32)
    rank, world = 0, 1
    if ddp:
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = resident()
    for step in range(args.steps):
        ids = torch.randint(0, args.words, (args.batch_size, args.tokens + 1))
        if ddp:
            ids = ids[rank::world]
        if step == 2:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak: start-up is not a step
        began = time.perf_counter()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, args.words), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del logits
        if step >= 2:
            print(f"step {step} seconds {time.perf_counter() - began:.4f} loss {loss.item():.6f}", flush=True)
    print(f"peak {peak() - before}", flush=True)
    if ddp:
        dist.destroy_process_group()


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
