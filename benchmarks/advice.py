"""Accuracy of the rules' predictions: runs the mod of every finding on the examples, and compares gain and prediction.

    python benchmarks/advice.py                    # all examples that fit this machine; half an hour
    python benchmarks/advice.py --only gpt-64      # one of them
    PYTHONPATH=src:.gpu-site python3 benchmarks/advice.py --into $OUT/advice.json    # from source
    python benchmarks/advice.py --merge FILE       # add the results of another machine

Runs `paceline profile --prove --json` on each example, stores the findings in `benchmarks/advice.json`, by machine, and
writes `benchmarks/advice.md` from that file. An error is the larger of predicted / measured and measured / predicted:
1.0 is exact. Aim: an error of at most 1.5 for three quarters of the findings.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
KEPT, PAGE = HERE / "advice.json", HERE / "advice.md"
CLOSE = 1.5
LONG = ["--epochs", "1000", "--log-every", "1000"]
GPU = {
    "resnet18-128": ["resnet18.py", "--batch-size", "128", "--train-size", "16000", "--test-size", "250"],
    "resnet18-1024": ["resnet18.py", "--batch-size", "1024", "--train-size", "65536", "--test-size", "250"],
    "gpt-64": ["gpt.py", "--batch-size", "64", "--train-size", "8192", "--test-size", "64"],
    "gpt-256": ["gpt.py", "--batch-size", "256", "--train-size", "16384", "--test-size", "64"],
    "cnn-256": ["cnn.py", "--batch-size", "256", "--train-size", "32768", "--test-size", "250"],
    "cnn-2048": ["cnn.py", "--batch-size", "2048", "--train-size", "65536", "--test-size", "250"],
}
SMALL_GPT = ["--layers", "2", "--width", "64", "--heads", "2", "--tokens", "32", "--words", "600"]
CPU = {
    "resnet18-32": ["resnet18.py", "--batch-size", "32", "--train-size", "1600", "--test-size", "50"],
    "cnn-64": ["cnn.py", "--batch-size", "64", "--train-size", "6400", "--test-size", "50"],
    "gpt-32": ["gpt.py", *SMALL_GPT, "--batch-size", "32", "--train-size", "3200", "--test-size", "32"],
    "by-hand-128": ["by_hand.py", "--batch-size", "128", "--train-size", "12800", "--test-size", "50"],
}
Row = dict[str, Any]


def machine() -> tuple[str, bool]:
    """The name of this machine, and whether it has a GPU."""
    code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if name:
        return name, True
    code = "import os; print(len(os.sched_getaffinity(0)))"
    cores = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return f"{cores} CPU cores, {platform.machine()}", False


def prove(command: list[str], budget: str, keep_in: Path | None) -> list[Row]:
    """The proven findings of one example. The record stays in `keep_in`, so that other rules can be tried on it."""
    script, *arguments = command
    if keep_in is not None:
        keep_in.mkdir(parents=True, exist_ok=True)
    with nullcontext(keep_in) if keep_in is not None else tempfile.TemporaryDirectory() as folder:
        paceline = [sys.executable, "-m", "paceline", "profile", "-n", "1", "--prove", "--budget", budget, "--json"]
        done = subprocess.run(
            [*paceline, "--quiet", str(EXAMPLES / script), *LONG, *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
        )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return []
    return list(json.loads(done.stdout)["findings"])


def off(row: Row) -> float | None:
    """The factor between predicted and measured gain, at least 1."""
    if not row["predicted_gain"] or not row["measured_gain"]:
        return None
    ratio = row["predicted_gain"] / row["measured_gain"]
    return float(max(ratio, 1 / ratio))


def page(kept: dict[str, dict[str, list[Row]]]) -> str:
    """The text of benchmarks/advice.md."""
    lines = [
        "# How good the rules' predictions are",
        "",
        "Made by `python benchmarks/advice.py`. Each finding's mod was tried alone, in short trials between trials of",
        "the script as it is. Predicted and measured are factors of samples a second; *off by* is the factor between",
        f"them, 1.00 being exact; the aim is {CLOSE} for three quarters of them. A finding without a mod is mended by",
        "hand, and not proven here.",
        "",
    ]
    for name, examples in kept.items():
        rows = [(example, row) for example, found in examples.items() for row in found]
        errors = sorted(error for _, row in rows if (error := off(row)) is not None)
        lines += [f"## {name}", ""]
        if errors:
            good = sum(error <= CLOSE for error in errors) / len(errors)
            told = f"Predictions: {len(errors)}, median off by {median(errors):.2f}, {good:.0%} within {CLOSE}."
            lines += [told, ""]
        lines += ["| example | rule | mod | predicted | measured | off by |", "|---|---|---|---|---|---|"]
        for example, row in rows:
            error = off(row)
            measured = f"{row['measured_gain']:.2f}" if row["measured_gain"] else row["proof"].split(";")[0][:60]
            predicted = f"{row['predicted_gain']:.2f}" if row["predicted_gain"] else ""
            cells = [example, row["rule"], row["mod"], predicted, measured, f"{error:.2f}" if error else ""]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def keep(kept: dict[str, dict[str, list[Row]]], into: Path) -> None:
    # Paths relative to the repository, so that the file is the same on every machine.
    into.write_text(re.sub(r'"[^"]*/examples/', '"examples/', json.dumps(kept, indent=1)) + "\n")
    if into == KEPT:
        PAGE.write_text(page(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare predicted and measured gains on the examples.")
    parser.add_argument("--only", action="append", help="name of an example; may be repeated")
    parser.add_argument("--budget", default="4m", help="time budget for the trials of an example")
    parser.add_argument("--into", type=Path, default=KEPT, help="file for the figures; no page is written")
    parser.add_argument("--records", type=Path, help="folder to keep the records in, one subfolder per example")
    parser.add_argument("--merge", type=Path, help="add the figures of another machine, and write the page")
    args = parser.parse_args()
    if args.merge:
        kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        for name, found in json.loads(args.merge.read_text()).items():
            kept.setdefault(name, {}).update(found)
        keep(kept, KEPT)
        return
    name, gpu = machine()
    examples = GPU if gpu else CPU
    kept = json.loads(args.into.read_text()) if args.into.exists() else {}
    for example, command in examples.items():
        if args.only and example not in args.only:
            continue
        print(f"{example} …", flush=True)
        found = prove(command, args.budget, args.records and args.records / example)
        for row in found:
            error = off(row)
            print(
                f"  {row['rule']}: {row['mod'] or 'by hand'}, predicted {row['predicted_gain'] or 0:.2f}, measured "
                f"{row['measured_gain'] or 0:.2f}{f', off by {error:.2f}' if error else ''}",
                flush=True,
            )
        kept.setdefault(name, {})[example] = found
        # Write after each example, so that an interrupted benchmark keeps its figures.
        keep(kept, args.into)


if __name__ == "__main__":
    main()
