"""Memory of one device: a GPT trained plainly and under a strategy, side by side.

    python benchmarks/strategy_memory.py --strategy sharded                 # 354 M parameters, on a GPU
    python benchmarks/strategy_memory.py --strategy central
    python benchmarks/strategy_memory.py --strategy sharded --tiny          # seconds on a CPU

Each side trains in a process of its own, with one worker, through `paceline.STRATEGY().distribute(…)`. Printed:
bytes of parameters and of optimizer state on the device, of activations that wait for backward (on a GPU: what a
forward leaves allocated), the peak of a step, seconds a step, and the losses, which must be equal.

Figures, 354 M parameters on one H200, one worker (plain → strategy), losses equal to the last digit:

    central    optimizer 2703.5 → 0.0 MiB, activations 6969.6 → 6969.6, peak 13228 → 10525, step 210 → 2274 ms
    sharded    optimizer 2703.5 → 2703.5, activations 6969.6 → 6969.6, peak 13228 → 13228, step 210 → 400 ms
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

EXAMPLES = Path(__file__).parents[1] / "examples"
LARGE = {"words": 50_304, "tokens": 512, "layers": 24, "width": 1024, "heads": 16, "batch": 8}  # 354 M parameters
TINY = {"words": 200, "tokens": 16, "layers": 2, "width": 32, "heads": 2, "batch": 4}
ROWS = ("parameters", "optimizer", "activations", "peak")


def train(strategy: str, sizes: dict[str, int], steps: int, device: str) -> dict[str, Any]:
    """Trains in this process; `strategy` "plain" is without Paceline."""
    sys.path.insert(0, str(EXAMPLES))
    from gpt import GPT

    torch.manual_seed(0)
    shape = (sizes[name] for name in ("words", "tokens", "layers", "width", "heads"))
    model = GPT(*shape, dropout=0.0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    count = sum(p.numel() for p in model.parameters())
    if strategy != "plain":
        from paceline.strategies import catalog

        model, optimizer = catalog.load(strategy).distribute(model, optimizer)
    ids = torch.randint(0, sizes["words"], (sizes["batch"], sizes["tokens"] + 1), device=device)
    losses, seconds, activations = [], 0.0, 0
    for _ in range(steps):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before, began = allocated(device), time.perf_counter()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        activations = allocated(device) - before
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds = time.perf_counter() - began
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return {
        "count": count,
        "parameters": on_device(model.parameters(), device),
        "optimizer": on_device(kept, device),
        "activations": activations,
        "peak": torch.cuda.max_memory_allocated() if device == "cuda" else 0,  # of the last step
        "seconds": seconds,
        "losses": losses,
    }


def allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def on_device(tensors: Any, device: str) -> int:
    """Bytes of the parts that this process holds on the device."""
    own = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    return sum(one.numel() * one.element_size() for one in own if one.device.type == device)


def run(strategy: str, args: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--inner", strategy, "--steps", str(args.steps), "--device", args.device]
    done = subprocess.run([*command, *(["--tiny"] if args.tiny else [])], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="sharded")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--inner", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner:
        print(json.dumps(train(args.inner, TINY if args.tiny else LARGE, args.steps, args.device)))
        return
    sides = {"plain": run("plain", args), args.strategy: run(args.strategy, args)}
    plain, other = sides.values()
    print(f"{plain['count'] / 1e6:.1f} M parameters, {args.device}, {args.steps} steps")
    print(f"{'':<14}" + "".join(f" {name:>15}" for name in sides))
    for row in ROWS:
        print(f"{row:<14}" + "".join(f"{side[row] / 2**20:>12.1f} MiB" for side in sides.values()))
    print(f"{'step':<14}" + "".join(f"{side['seconds'] * 1e3:>13.1f} ms" for side in sides.values()))
    worst = max(abs(a - b) / abs(a) for a, b in zip(plain["losses"], other["losses"], strict=True))
    print(f"losses {' '.join(f'{loss:.6f}' for loss in other['losses'])}: relative difference at most {worst:.1e}")


if __name__ == "__main__":
    main()
