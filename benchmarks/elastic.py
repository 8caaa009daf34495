"""A killed worker: the time until the next step, and what is lost.

    python benchmarks/elastic.py

A worker is killed by SIGKILL after some steps, in turn under `paceline run --elastic 1` and under
`torchrun --max-restarts 3`, on the same script, which has a branch of its own for DDP. The figure is the time from the
kill to the next line that the script prints. torchrun starts everybody again from the first step; this script has
nothing to load.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil
from side_by_side import PACELINE, TORCHRUN, in_turn, ratio

AT, MORE = 100, 60  # steps before the kill, and lines read after it
PATIENCE = 60.0  # seconds for one run as a whole
SCRIPT = """
import os
import torch
from torch import nn

ddp = "RANK" in os.environ
if ddp:
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 9))
if ddp:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(1_000_000):
    x, y = torch.randn(64, 64), torch.randint(0, 9, (64,))
    if ddp:
        x, y = x[rank::world], y[rank::world]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not ddp or rank == 0:
        print(step, f"{loss.item():.6f}", flush=True)
"""


def end(run: subprocess.Popen[bytes]) -> None:
    """Kill a run with all of its processes, torchrun's workers too, which are in sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(run.pid)
        for process in [leader, *leader.children(recursive=True)]:
            process.kill()
    run.wait()


def to_next_step(command: list[str], folder: Path, lost: list[int]) -> float:
    """Seconds from the death of a worker to the next step.

    That is the first line with a number that was printed before, where the run begins again, or else the line behind
    the longest pause. A run that has ended or has not come back within PATIENCE counts as that long.
    """
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert run.stdout is not None
    guard = threading.Timer(PATIENCE, end, (run,))
    guard.start()
    try:
        for line in run.stdout:
            if line.startswith(b"%d " % AT):
                break
        workers = [child for child in psutil.Process(run.pid).children(recursive=True) if not child.children()]
        killed = time.monotonic()
        max(workers, key=lambda child: child.pid).kill()  # the last one that was started: not rank 0
        came = [(killed, AT)]
        for line in run.stdout:
            came.append((time.monotonic(), int(line.split()[0])))
            if len(came) == MORE:
                break
        else:
            return PATIENCE
    finally:
        guard.cancel()
        end(run)
    pairs = list(pairwise(came))
    again = [pair for pair in pairs if pair[1][1] <= pair[0][1]]
    (_, before), (at, step) = again[0] if again else max(pairs, key=lambda pair: pair[1][0] - pair[0][0])
    lost.append(before + 1 - step)
    return at - killed


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time from a worker's death to the next step.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    lost: dict[str, list[int]] = {"paceline": [], "torchrun": []}
    n = str(args.workers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        ours = [*PACELINE, "run", "-n", n, "--elastic", "1", "--quiet", "--oversubscribe", "train.py"]
        theirs = [*TORCHRUN, "--standalone", "--nproc-per-node", n, "--max-restarts", "3", "train.py"]
        sides = {
            "paceline": lambda: to_next_step(ours, folder, lost["paceline"]),
            "torchrun": lambda: to_next_step(theirs, folder, lost["torchrun"]),
        }
        figures = in_turn(sides, args.rounds, "s")
    print(f"  torchrun / paceline: {ratio(figures['torchrun'], figures['paceline'])}")
    print(f"  steps that are made again: paceline {lost['paceline']}, torchrun {lost['torchrun']}")


if __name__ == "__main__":
    main()
