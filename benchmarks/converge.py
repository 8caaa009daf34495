"""The accuracy table: one worker and eight emulated ones, with each technique; writes benchmarks/converge.md.

    python benchmarks/converge.py --data DIR                                     # CIFAR-10 and Fashion-MNIST from there
    PYTHONPATH=src:.gpu-site python3 benchmarks/converge.py --data DIR --into $OUT/converge.json
    python benchmarks/converge.py --small                                        # on CPU, drawn pictures: does it work?

Each case is one `paceline converge` over benchmarks/residual_net.py: 12 epochs, batch 512 × 8 workers, Adam at 1e-3,
bf16, three seeds; without batch norm and with it. Aims: naive is worst and LAMB is best by hand; `auto`, choosing by
itself, reaches the better of the two single-worker accuracies, and the best technique's less one point.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from side_by_side import PACELINE, ROOT
from tune import machine

NET = "benchmarks/residual_net.py"
TABLE1 = "lr_scale=8:linear,lr_scale=8:linear+warmup=22,lr_scale,warmup,lars,lamb,auto"
TABLE2 = TABLE1 + ",ghost_bn,optimizer=lamb:0.02+ghost_bn=32+warmup=15+decay=88,optimizer=lars:5+warmup=15+decay=88"
CASES = {  # arguments of the script, techniques
    "cifar-10": (["--shape", "cifar"], TABLE1),
    "cifar-10, batch norm": (["--shape", "cifar", "--norm"], TABLE2),
    "fashion-mnist, batch norm": (["--shape", "fashion", "--norm"], TABLE2),
}
SMALL = ["--train-size", "1024", "--test-size", "250", "--batch-size", "16", "--epochs", "2"]
KEPT = ROOT / "benchmarks" / "converge.json"


def run(name: str, data: Path | None, seeds: int, small: bool, budget: str) -> dict[str, Any]:
    """The verb's JSON document, with the command and the machine."""
    arguments, techniques = CASES[name]
    # A table's own techniques know how many steps there are; a small one has others.
    techniques = "lr_scale,lamb,auto" if small else techniques
    script = [NET, *arguments, *(SMALL if small else []), *(["--data", str(data)] if data else [])]
    options = ["--workers", "8", "--seeds", str(seeds), "--budget", budget, "--techniques", techniques, "--seed", "1"]
    if not small:
        options += ["--mod", "precision=bf16", "--mod", "resident"]
    print(f"paceline converge {' '.join([*options, *script])}", flush=True)
    with tempfile.TemporaryDirectory() as records:
        made = subprocess.run(
            [*PACELINE, "converge", "--json", "--record", records, *options, *script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=False,
        )
    document: dict[str, Any] = json.loads(made.stdout)
    for key in ("record", "plot"):
        document.pop(key, None)
    typed = ["paceline", "converge", *options, *("DIR" if part == str(data) else part for part in script)]
    return document | {"typed": " ".join(typed), "machine": machine(), "exit_code": made.returncode}


def told(name: str, found: dict[str, Any]) -> list[str]:
    """A case as lines of the page."""
    lines = [f"## {name}", "", f"    {found['typed']}", "", f"On {found['machine']}.", ""]
    if "error" in found:
        return [*lines, f"**{found['error']['message']}**", ""]
    lines += ["| workers | technique | test accuracy | images/s | epochs to target | |", "|---|---|---|---|---|---|"]
    for row in found["rows"]:
        epochs = "" if row["epochs_to_target"] is None else f"{row['epochs_to_target']:.3g}"
        notes = ["best"] if row["technique"] == found["chosen"] else []
        notes += [f"diverged at step {row['diverged']}"] if row["diverged"] is not None else []
        notes += [row["trouble"]] if row["trouble"] else []
        cells = [str(row["workers"]), row["technique"], row["shown"], f"{row['samples_per_s']:,.0f}", epochs]
        lines.append(f"| {' | '.join(cells)} | {', '.join(notes)} |")
    return [*lines, "", f"Target: {found['target']:.1%}." if found["target"] else "", ""]


def aims(found: dict[str, Any]) -> list[str]:
    """What was asked of the CIFAR-10 tables."""
    plain, normed = ({r["technique"]: r for r in found.get(name, {}).get("rows", ())} for name in list(CASES)[:2])
    if not plain or not normed:
        return []
    alone = max(rows["one worker"]["accuracy"]["mean"] for rows in (plain, normed))
    eight = {name: row["accuracy"]["mean"] or 0.0 for name, row in normed.items() if name != "one worker"}
    best = max(mean for name, mean in eight.items() if name != "auto")
    return [
        f"`auto` at 8 workers: {eight['auto']:.1%}. The better single worker: {alone:.1%}. "
        f"The best technique chosen by hand: {best:.1%}.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The accuracy table.")
    parser.add_argument("cases", nargs="*", help=f"of: {'; '.join(CASES)}")
    parser.add_argument("--data", type=Path, help="folder of the real sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", default="30m", help="of each case")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--into", type=Path, default=KEPT)
    args = parser.parse_args()
    if args.data is None and not args.small:
        parser.error("give --data DIR, or --small")
    found: dict[str, Any] = json.loads(args.into.read_text()) if args.into.exists() else {}
    for name in args.cases or CASES:
        found[name] = run(name, args.data, args.seeds, args.small, args.budget)
        args.into.write_text(json.dumps(found, indent=1) + "\n")
    head = ["# The accuracy table", "", "Made by `benchmarks/converge.py`, which says how.", "", *aims(found)]
    page = [line for name in CASES if name in found for line in told(name, found[name])]
    args.into.with_suffix(".md").write_text("\n".join([*head, *page]).rstrip() + "\n")
    print(f"wrote {args.into.with_suffix('.md')}", file=sys.stderr)


if __name__ == "__main__":
    main()
