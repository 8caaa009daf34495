"""What a layout of two workers costs: bytes that a worker holds, and bytes that it sends in a step.

    python benchmarks/mesh_memory.py              # a GPT with 8.9 M parameters on two workers: a minute on two cores
    python benchmarks/mesh_memory.py --tiny       # seconds

The same GPT is trained with AdamW on one worker and on meshes of two workers. Printed for rank 0: bytes of weights, of
optimizer state and of logits; the number and bytes of the messages of one step, by what they are for; and the losses,
which must be equal. A message counts with the bytes that the worker gives to the collective. Small exchanges (checks
that the workers agree) are left out: below 1 KiB each.

Figures of the first command, in MiB for one worker, 1 → data=2,model=1 → data=1,model=2; losses differ by 2e-7:

    weights      33.77 → 33.77 → 16.93
    optimizer    67.53 → 67.53 → 33.87
    logits       31.25 → 15.62 → 15.62
    sent         0 → 33.77 (3 messages, gradients) → 19.78 (52 messages, parts of layers; of logits: 2 of 2 KiB)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZES = {"words": 16_000, "tokens": 64, "layers": 6, "width": 256, "heads": 4, "batch": 8}
TINY = {"words": 800, "tokens": 16, "layers": 2, "width": 32, "heads": 2, "batch": 4}
SIDES = {"1": "one", "2 × 1": "mesh(data=2,model=1)", "1 × 2": "mesh(data=1,model=2)"}
ROWS = ("weights", "optimizer", "logits")
SMALL = 1024  # bytes of a message that only checks something


def train(sizes: dict[str, int], steps: int) -> dict[str, Any]:
    """An ordinary training loop, which runs on the workers. The messages of the last step are counted."""
    sys.path.insert(0, str(EXAMPLES))
    from gpt import GPT

    torch.manual_seed(0)
    shape = (sizes[name] for name in ("words", "tokens", "layers", "width", "heads"))
    model = GPT(*shape, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, sizes["words"], (sizes["batch"], sizes["tokens"] + 1))
    messages, losses = counted(), []
    logits = torch.empty(0)
    for _ in range(steps):
        messages.clear()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.view(-1, sizes["words"]), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]
    return {
        "weights": sum(map(held, model.parameters())),
        "optimizer": sum(map(held, state)),
        "logits": held(logits),
        "messages": [(what, number, size) for (what, number), size in grouped(messages).items()],
        "losses": losses,
    }


def held(tensor: Any) -> int:
    """Bytes that this worker holds of a tensor that may have other parts on other workers."""
    for name in ("local", "part", "shard"):  # rows, logits and parameters that are split
        tensor = getattr(tensor, name, tensor)
    tensor = getattr(tensor, "_local_tensor", tensor)
    return tensor.numel() * tensor.element_size()


def counted() -> list[tuple[str, int]]:
    """From now on, what each message is for, and its bytes."""
    from paceline.comm.group import Group

    found: list[tuple[str, int]] = []

    def note(name: str, position: int | None) -> None:
        plain = getattr(Group, name)

        def collective(self: Group, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            what = "gradients" if position is None else args[position]
            found.append((what, tensor.numel() * tensor.element_size() if self.world > 1 else 0))
            return plain(self, tensor, *args, **kwargs)

        setattr(Group, name, collective)

    for name, position in (("all_reduce", 0), ("gather_rows", 2), ("start_all_reduce", None)):
        note(name, position)
    return found


def grouped(messages: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Bytes by what they are for, and how many messages these were."""
    large = [(what, size) for what, size in messages if size >= SMALL]
    numbers = Counter(what for what, _ in large)
    return {(what, number): sum(size for other, size in large if other == what) for what, number in numbers.items()}


def run(strategy: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rank 0's answer."""
    with tempfile.TemporaryDirectory() as folder:
        workers = "1" if strategy == "one" else "2"
        command = [sys.executable, "-m", "paceline", "run", "-n", workers, "--strategy", strategy, "--record", folder]
        inner = [__file__, "--inner", "--steps", str(args.steps), *(["--tiny"] if args.tiny else [])]
        surroundings = dict(os.environ, OMP_NUM_THREADS="1")
        done = subprocess.run([*command, *inner], capture_output=True, text=True, check=False, env=surroundings)
    if done.returncode:
        sys.exit(done.stderr)
    line = next(line for line in done.stdout.splitlines() if line.startswith('{"weights"'))
    found: dict[str, Any] = json.loads(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner:
        print(json.dumps(train(TINY if args.tiny else SIZES, args.steps)))
        return
    sides = {name: run(strategy, args) for name, strategy in SIDES.items()}
    print(f"{'data × model':<34}" + "".join(f"{name:>12}" for name in sides))
    for row in ROWS:
        print(f"{row:<34}" + "".join(f"{side[row] / 2**20:>8.2f} MiB" for side in sides.values()))
    kinds = sorted({what for side in sides.values() for what, *_ in side["messages"]})
    for kind in kinds:
        cells = [
            next(((n, size) for what, n, size in side["messages"] if what == kind), (0, 0)) for side in sides.values()
        ]
        print(f"{kind:<34}" + "".join(f"{size / 2**20:>8.2f} MiB" for _, size in cells))
        print(f"{'  messages':<34}" + "".join(f"{number:>12}" for number, _ in cells))
    total = [sum(size for *_, size in side["messages"]) / 2**20 for side in sides.values()]
    print(f"{'sent in a step':<34}" + "".join(f"{size:>8.2f} MiB" for size in total))
    plain, *others = (side["losses"] for side in sides.values())
    worst = max(abs(a - b) / a for other in others for a, b in zip(plain, other, strict=True))
    print(f"losses: relative difference at most {worst:.1e}")


if __name__ == "__main__":
    main()
