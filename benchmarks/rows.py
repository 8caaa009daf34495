"""Overhead of functions of a model's sharded output over torch's own, in microseconds a call.

    python benchmarks/rows.py          # two workers, seconds

Each function is called on the output of a sliced call and on a plain tensor of own rows' size, in alternation. Shown is
the median of the differences over rounds (smallest – largest). Aim: 20 µs for a function without a message.

Figures, 16 idle cores: 7 to 19 µs. Two busy cores: `shape` 0; relu, softmax, argmax 15 to 25 µs; operators 22 to 35
µs; views 25 to 50 µs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from side_by_side import PACELINE, run
from torch import nn

CALLS, ROUNDS = 200, 15
FUNCTIONS = {
    "out.shape": lambda out, labels: out.shape,
    "relu(out)": lambda out, labels: torch.relu(out),
    "out * 2": lambda out, labels: out * 2,
    "out - out": lambda out, labels: out - out,
    "out.view(-1, 8)": lambda out, labels: out.view(-1, 8),
    "out[:, -1]": lambda out, labels: out[:, -1],
    "out.transpose(0, 1)": lambda out, labels: out.transpose(0, 1),
    "softmax(out, -1)": lambda out, labels: F.softmax(out, -1),
    "out.argmax(-1)": lambda out, labels: out.argmax(-1),
    "out == labels": lambda out, labels: out[..., 0] == labels,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure functions of sharded outputs.")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().inside:
        measure()
        return
    for line in run([*PACELINE, "run", "-n", "2", "--quiet", "--gather-below", "0", __file__, "--inside"]):
        print(line.text)


def measure() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        out, own = nn.Linear(8, 8)(torch.randn(8, 4, 8)), torch.randn(4, 4, 8)
        labels = torch.zeros(8, 4)
        for name, function in FUNCTIONS.items():
            over = [seconds(function, out, labels) - seconds(function, own, labels[:4]) for _ in range(ROUNDS)]
            print(f"{name:22} {statistics.median(over):6.1f} ({min(over):.1f} – {max(over):.1f}) µs", flush=True)


def seconds(function, out: torch.Tensor, labels: torch.Tensor) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    for _ in range(CALLS):
        function(out, labels)
    return (time.perf_counter() - began) / CALLS * 1e6


if __name__ == "__main__":
    main()
