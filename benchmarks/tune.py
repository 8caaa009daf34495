"""What `paceline tune` gains on the examples, unmodified, within its budget.

    python benchmarks/tune.py gpu                # ResNet-18 without and with a larger batch, a GPT: one GPU
    python benchmarks/tune.py cpu                # the CNN with its plain DataLoader, and a script that is tuned already
    python benchmarks/tune.py cpu --budget 60s --only cnn

Each case is typed as a person would, and its verdict is read from `--json`. The table goes to benchmarks/tune.md, with
the machine, the commands, and what was wanted.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TUNED_ALREADY = '''"""Nothing to gain: the data is one tensor, and a step is one product."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
x, y = torch.randn(4096, 512), torch.randn(4096, 512)
weight = torch.nn.Linear(512, 512, bias=False)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.01, fused=True)
for step in range(100_000):
    loss = torch.nn.functional.mse_loss(weight(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
'''


@dataclass(frozen=True)
class Case:
    """What is typed after `paceline tune`, and the gain that is wanted of it (1: none may be claimed)."""

    name: str
    typed: str
    wanted: float


CASES = {
    "gpu": (
        Case("resnet18", "examples/resnet18.py --train-size 20000 --epochs 100 --log-every 1000", 5.0),
        Case("resnet18, batch", "--allow batch examples/resnet18.py --train-size 50000 --epochs 100", 20),
        Case("gpt", "examples/gpt.py --batch-size 256 --train-size 20000 --epochs 100 --log-every 1000", 3.5),
    ),
    "cpu": (
        Case("cnn", "examples/cnn.py --epochs 100", 1.3),
        Case("tuned already", "--without workers tuned_already.py", 1.0),
    ),
}


def tune(case: Case, budget: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "paceline", "tune", "--json", "--budget", budget, "--record", str(folder)]
    typed = shlex.split(case.typed.replace("tuned_already.py", str(folder / "tuned_already.py")))
    done = subprocess.run([*command, *typed], cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def row(case: Case, found: dict[str, Any]) -> str:
    final = found.get("final")
    if not final:
        return f"| {case.name} | | | failed: {found['error']['message']} | {case.wanted:g}× | | | |"
    mods = " ".join(final["mods"]) or "nothing to gain"
    apart = final["loss_difference"]
    loss = "" if apart is None else f"{100 * apart:.2f} % ({100 * found['guard']['seeds']:.2f} %)"
    return (
        f"| {case.name} | {found['baseline']['samples_per_s']:,.0f} | {final['samples_per_s']:,.0f} "
        f"| **{final['gain']:.2f}×** ({final['gain_low']:.2f}–{final['gain_high']:.2f}) | {case.wanted:g}× "
        f"| {mods} | {loss} | {found['spent']:.0f} s, {found['trials']} trials |"
    )


def machine() -> str:
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return (
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} cores{gpu}; torch {torch.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(CASES))
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--only", help="this case")
    parser.add_argument("--records", type=Path, default=Path("paceline-runs"))
    args = parser.parse_args()
    args.records.mkdir(parents=True, exist_ok=True)
    (args.records / "tuned_already.py").write_text(TUNED_ALREADY)
    cases = [case for case in CASES[args.kind] if args.only in (None, case.name)]
    rows = [row(case, tune(case, args.budget, args.records.resolve())) for case in cases]
    heads = ("case", "samples/s", "tuned", "gain (pairs)", "wanted", "mods", "loss difference (another seed's)", "took")
    text = "\n".join(
        [
            "# What `paceline tune` gains",
            "",
            f"`python benchmarks/tune.py {args.kind} --budget {args.budget}` on {machine()}.",
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
            *rows,
            "",
            *(f"- {case.name}: `paceline tune --budget {args.budget} {case.typed}`" for case in cases),
            "",
        ]
    )
    (HERE / "tune.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
