"""Overhead of drawing one process's random numbers in attention and in compiled code, in a training step of a GPT.

    python benchmarks/exact_draws.py                 # on the GPU if there is one; a minute
    python benchmarks/exact_draws.py --device cpu --batch-size 4 --layers 1 --rounds 3

One process computes the rows of the second of two workers: as plain torch would, and inside a sliced call, in which its
dropout is that of these rows in the whole batch. Steps of both alternate, with those of a second plain side: it shows
what noise alone makes of equal sides. A round is the median of a few steps. Six layers, 384 wide, 256 tokens, dropout
0.2, bf16: the character model that most people begin with. Aim: 1.01.

Figures, one H200, torch 2.11: exact ÷ plain. `small` is the model above, 10 to 11 ms a step, limited by the host's
launches; `large` is `--width 768 --layers 12 --tokens 1024 --batch-size 32`, 28 to 34 ms.

| | eager, attention only | eager | compiled, attention only | compiled |
|---|---|---|---|---|
| small | 1.040 (1.011 – 1.089) | 1.142 (1.067 – 1.220) | 1.015 (0.963 – 1.055) | 1.023 (0.992 – 1.037) |
| large | 1.012 (1.002 – 1.045) | 1.040 (1.035 – 1.135) | 1.002 (1.000 – 1.004) | 1.006 (1.000 – 1.010) |

The second plain side gave 0.995 to 1.005. A draw alone, on the host: 20 µs (attention) and 25 µs (dropout) longer than
torch's own. A dropout in eager mode is computed twice, by torch for its node in the graph, and by the kernel that
places the numbers.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from side_by_side import ratio
from torch import nn

from paceline.script.draws import compiled, table
from paceline.script.draws.rows import Draws, rules_of
from paceline.script.rows.crossings import Split

P = 0.2


class Block(nn.Module):
    def __init__(self, width: int, heads: int, p: float) -> None:
        super().__init__()
        self.heads, self.p = heads, p  # p: of the dropout outside of attention
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(p))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=P, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(batch, tokens, width)), self.p)
        return x + self.mlp(self.ln2(x))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the overhead of exact draws in attention and compiled code.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384, help="64 for each head")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind in a round")
    parser.add_argument("--attention-only", action="store_true", help="no dropout outside of attention")
    parser.add_argument("--only", choices=["eager", "compiled"])
    args = parser.parse_args()
    torch.manual_seed(0)
    p = 0.0 if args.attention_only else P
    model = nn.Sequential(*(Block(args.width, args.width // 64, p) for _ in range(args.layers))).to(args.device)
    x = torch.randn(args.batch_size, args.tokens, args.width, device=args.device)
    split = Split.of(SimpleNamespace(rank=1, world=2), len(x))  # type: ignore[arg-type]
    mine = x.narrow(0, split.start, split.mine)
    draws = Draws()
    remove = table.find(draws)
    with draws.rehearsal() as whole:
        model(x)
    with draws.rehearsal() as own:
        model(mine)
    rules = rules_of(own.drawn or (), whole.drawn or (), split)
    remove()
    for name in [args.only] if args.only else ["eager", "compiled"]:
        is_compiled = name == "compiled"

        def call(is_compiled: bool = is_compiled) -> Any:
            compiled.tell_devices(split.start, split.batch)
            return draws.in_call(split, rules, by_shape=is_compiled)

        sides = {side: step(copy.deepcopy(model), mine, args, is_compiled) for side in ("plain", "again", "exact")}
        times: dict[str, list[float]] = {side: [] for side in sides}
        sides["plain"](nullcontext)  # compiled without the patches
        sides["again"](nullcontext)
        remove = table.find(draws)  # once: Python forgets what it has learned of a module that is patched
        for number in range(args.rounds * args.steps + 3):  # the first three are warm-up
            for side in list(sides) if number % 2 else list(reversed(sides)):
                times[side].append(sides[side](call if side == "exact" else nullcontext))
        remove()
        assert bool(draws.met) == is_compiled  # the graph that was made is not the other side's
        assert not draws.missed
        assert not draws.told
        rounds = {
            side: [statistics.median(found[at : at + args.steps]) for at in range(3, len(found), args.steps)]
            for side, found in times.items()
        }
        print(f"{name}: plain step {statistics.median(rounds['plain']) * 1e3:.2f} ms")
        print(f"  plain again ÷ plain {ratio(rounds['again'], rounds['plain'])}")
        print(f"  exact ÷ plain       {ratio(rounds['exact'], rounds['plain'])}   aim ≤ 1.01", flush=True)


def step(
    model: nn.Module, x: torch.Tensor, args: argparse.Namespace, is_compiled: bool
) -> Callable[[Callable[[], Any]], float]:
    """Returns a function that makes a step inside what it is given, and returns its time."""
    forward = torch.compile(lambda x: model(x)) if is_compiled else model

    def one(inside: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        with inside(), torch.autocast(args.device, torch.bfloat16):
            y = forward(x)
            loss = y.float().square().mean()
        loss.backward()
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    return one


if __name__ == "__main__":
    main()
