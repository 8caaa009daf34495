"""Gains of `paceline tune` and `paceline sweep` on the examples; writes benchmarks/tune.md.

    python benchmarks/tune.py cnn                                             # on CPU cores
    PYTHONPATH=src:.gpu-site python3 benchmarks/tune.py resnet18 gpt own-compile --into $OUT/tune.json        # on a GPU
    python benchmarks/tune.py --merge FILE                                    # add the results of another machine

Each case is one command with a budget of five minutes. Its verdict, with the machine's description, is stored in
benchmarks/tune.json, from which the page is written. Aims: 7 × on the unmodified ResNet-18, 20 × if the batch may grow,
4 × on the GPT at batch 256, 2.5 × on a GPT trainer with its own torch.compile and autocast, all on one H200; 1.3 × on
the CNN on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from side_by_side import PACELINE, ROOT

PICTURES = ["--epochs", "1000", "--train-size", "12800", "--test-size", "500"]
CASES: dict[str, tuple[list[str], float | None]] = {  # command, and the gain to reach
    "resnet18": (["tune", "examples/resnet18.py", *PICTURES], 7.0),
    "resnet18-batch": (
        ["tune", "--allow", "batch", "examples/resnet18.py", "--epochs", "1000", "--train-size", "40960"],
        20.0,
    ),
    "gpt": (["tune", "examples/gpt.py", "--epochs", "1000", "--batch-size", "256", "--train-size", "10240"], 4.0),
    "own-compile": (
        ["tune", "benchmarks/gpt_trainer.py", "--compile", "--autocast", "--steps", "100000"],
        2.5,
    ),
    "cnn": (["tune", "examples/cnn.py", "--epochs", "1000"], 1.3),
    "sweep-gpt": (
        ["sweep", "--from", "8", "--to-the-end", "examples/gpt.py", "--epochs", "1000", "--train-size", "40960"],
        None,
    ),
}
KEPT = ROOT / "benchmarks" / "tune.json"


def machine() -> str:
    import torch

    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    cores = f"{len(os.sched_getaffinity(0))} CPU cores ({platform.machine()})"
    return ", ".join([*gpus, cores, f"torch {torch.__version__}", f"Python {platform.python_version()}"])


def run(name: str, budget: str) -> dict[str, Any]:
    """The verb's JSON document, with the command and the machine."""
    (verb, *rest), _ = CASES[name]
    command = [verb, "--budget", budget, *rest]
    print(f"paceline {' '.join(command)}", flush=True)
    with tempfile.TemporaryDirectory() as records:
        made = subprocess.run(
            [*PACELINE, verb, "--json", "--record", records, *command[1:]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=False,
        )
    document: dict[str, Any] = json.loads(made.stdout)
    document.pop("record")
    return document | {"typed": f"paceline {' '.join(command)}", "machine": machine(), "exit_code": made.returncode}


def told(name: str, found: dict[str, Any]) -> list[str]:
    """The lines of the page for one case."""
    lines = [f"## {name}", "", f"    {found['typed']}", "", f"On {found['machine']}.", ""]
    if "error" in found:
        return [*lines, f"**{found['error']['message']}**", ""]
    if found["verb"] == "sweep":
        lines += ["| batch | samples/s | memory (GB) |", "|---|---|---|"]
        for point in found["points"]:
            speed = f"{point['samples_per_s']:,.0f}" if point["fits"] else "out of memory"
            memory = f"{point['memory'] / 1e9:.1f}" if point["fits"] else ""
            lines.append(f"| {point['batch']:,} | {speed} | {memory} |")
        return [*lines, "", f"Knee: {found['knee']}. Best: {found['best']}. It ended: {found['why']}.", ""]
    lines += ["| mod | before | after | gain | loss difference | |", "|---|---|---|---|---|---|"]
    for row in found["mods"]:
        numbers = [
            f"{row['before']:,.0f}" if row["before"] else "",
            f"{row['after']:,.0f}" if row["after"] else "",
            f"{row['gain']:.2f} ×" if row["gain"] else "",
            f"{row['loss_difference']:.2%}" if row["loss_difference"] is not None else "",
        ]
        lines.append(f"| {row['mod']} | {' | '.join(numbers)} | {'kept' if row['kept'] else row['reason']} |")
    final, aim, plain = found["final"], CASES[name][1], found["baseline"]
    spread = f"{final['gain_low']:.2f} – {final['gain_high']:.2f}, pairs: {final['pairs']}"
    told_aim = f" The aim is {aim:g} ×." if aim else ""
    if plain["high"] > 1.3 * plain["low"]:
        told_aim += (
            f" The script as it is gave {plain['low']:,.0f} to {plain['high']:,.0f} samples/s in its {plain['trials']} "
            f"trials: {final['samples_per_s'] / plain['high']:.1f} × at least."
        )
    return [
        *lines,
        "",
        left_to_gain(found),
        "",
        f"From {final['samples_per_s'] / final['gain']:,.0f} to {final['samples_per_s']:,.0f} samples/s, in fresh "
        f"processes: **{final['gain']:.2f} ×** ({spread}).{told_aim}",
        "",
    ]


def left_to_gain(found: dict[str, Any]) -> str:
    """What a longer search could find at most: the regret's bound."""
    best = set(found["final"]["mods"])
    doubtful = [row["gain"] for row in found["mods"] if _is(row, "not confirmed") and set(row["on"]) == best]
    untried = [row["mod"] for row in found["mods"] if _is(row, "not tried")]
    left = f"{math.prod(doubtful):.2f} × by the mods whose gain was not confirmed" if doubtful else ""
    more = f"something by the mods not tried: {', '.join(untried)}" if untried else ""
    return f"A longer search could gain {', and '.join(filter(None, (left, more))) or 'nothing more from these mods'}."


def _is(row: dict[str, Any], reason: str) -> bool:
    return bool(row["reason"].startswith(reason))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run tune and sweep on the examples.")
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="cases to run")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--into", type=Path, default=KEPT)
    parser.add_argument("--merge", type=Path, help="add the results of another machine")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.into.read_text()) if args.into.exists() else {}
    if args.merge:
        found |= json.loads(args.merge.read_text())
    for name in args.cases:
        found[name] = run(name, args.budget)
        args.into.write_text(json.dumps(found, indent=1) + "\n")
    args.into.write_text(json.dumps(found, indent=1) + "\n")
    head = [
        "# tune and sweep on the examples",
        "",
        "Made by `benchmarks/tune.py`; its docstring describes the method.",
        "",
    ]
    page = [line for name in CASES if name in found for line in told(name, found[name])]
    args.into.with_suffix(".md").write_text("\n".join([*head, *page]).rstrip() + "\n")
    print(f"wrote {args.into.with_suffix('.md')}", file=sys.stderr)


if __name__ == "__main__":
    main()
