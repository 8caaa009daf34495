"""Accuracy of one worker and of eight emulated workers, with each technique; writes converge.json and converge.md.

    python benchmarks/converge.py --data DIR                                # all of it, CIFAR-10 and Fashion-MNIST
    python benchmarks/converge.py --data DIR --minutes 9 --into a.json      # stop after 9 minutes; repeat to continue
    python benchmarks/converge.py --data DIR "cifar-10" --only lamb,auto --seeds 0,1,2 --into b.json
    python benchmarks/converge.py --merge a.json b.json                     # merge several files into one table
    python benchmarks/converge.py --small                                   # smoke test on a CPU, with drawn pictures

Each trial is a trial of `paceline converge` with benchmarks/residual_net.py: 12 epochs, batch 512 × 8 workers, Adam at
1e-3, float32 (or bf16 with --precision bf16), training data on the GPU, three seeds, without and with batch norm.
Needs neither a network nor matplotlib. Several commands may run at the same time, so the page shows no speeds. Aims:
of the techniques chosen by hand, naive is worst and LAMB is best; `auto` reaches the better of the two single-worker
accuracies, and is at most one point below the best technique.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from in_parts import ABOUT, Kept, carry_out, unpacked
from side_by_side import ROOT

from paceline.launch import Zygote
from paceline.reports.converge import accuracy_words
from paceline.settings import RunSettings
from paceline.trials.converge.series import ALONE, NAIVE, WARM_UP, Converge, Trial, Verdict, judge, parse_techniques
from paceline.trials.converge.trials import OnBench
from paceline.trials.core.bench import Bench, Budget

NET = str(ROOT / "benchmarks" / "residual_net.py")
CASES = {  # arguments of the script
    "cifar-10": ("--shape", "cifar"),
    "cifar-10, batch norm": ("--shape", "cifar", "--norm"),
    "fashion-mnist, batch norm": ("--shape", "fashion", "--norm"),
}
ROWS = {  # name: the technique, as in `--techniques`; a mark means that it needs batch norm
    ALONE: "",
    NAIVE: "",
    "rate × 8": "lr_scale=8:linear",
    "rate × 8, warm-up": "lr_scale=8:linear+warmup={warm}",
    "rate × √8": "lr_scale",
    "rate × √8, warm-up": "warmup",
    "ghost": "ghost_bn",
    "lars": "lars",
    "lamb": "lamb",
    "lars, by hand": "optimizer=lars:5+warmup={warm}+decay={steps}",
    "lamb, by hand": "optimizer=lamb:0.02+ghost_bn=32+warmup={warm}+decay={steps}",
    "auto": "auto",
}
NORMED = ("ghost", "lamb, by hand")
WORKERS = 8


class Sizes:
    """Sizes of the benchmark, or of the smoke test."""

    def __init__(self, small: bool) -> None:
        self.train, self.test, self.batch, self.epochs = (512, 100, 8, 1) if small else (30_000, 10_000, 512, 12)

    @property
    def arguments(self) -> tuple[str, ...]:
        names = {"--train-size": self.train, "--test-size": self.test, "--batch-size": self.batch}
        return tuple(str(part) for pair in (names | {"--epochs": self.epochs}).items() for part in pair)

    @property
    def steps(self) -> int:
        """Steps of a run on eight workers."""
        return self.epochs * math.ceil(self.train / (self.batch * WORKERS))

    def mods(self, row: str) -> tuple[str, ...]:
        if row == ALONE:
            return ()
        emulate = f"emulate={WORKERS}"
        if row == NAIVE:
            return (emulate,)
        [technique] = parse_techniques(ROWS[row].format(warm=max(2, self.steps // WARM_UP), steps=self.steps))
        return (emulate, *technique.mods(WORKERS, self.steps))


class Trials:
    """Measures trials, all on one zygote."""

    def __init__(self, sizes: Sizes, data: Path | None, mods: tuple[str, ...], records: Path) -> None:
        self.sizes, self.data, self.mods, self.records = sizes, data, mods, records
        self.zygote = Zygote.start()
        self._benches: dict[str, OnBench] = {}

    def __call__(self, case: str, row: str, seed: str) -> tuple[dict[str, Any], str]:
        measure = self._bench(case)
        trial = measure(f"{row}.seed{seed}", self.sizes.mods(row), int(seed))
        said = trial.trouble or ("no accuracy" if trial.accuracy is None else f"{trial.accuracy:.1%}")
        return msgspec.to_builtins(trial), f"{said}, {trial.samples_per_s:,.0f} images/s"

    def _bench(self, case: str) -> OnBench:
        if case not in self._benches:
            folder = self.records / case.replace(", ", "-").replace(" ", "-")
            folder.mkdir()
            data = ("--data", str(self.data)) if self.data else ()
            settings = RunSettings(
                script=NET, arguments=(*CASES[case], *self.sizes.arguments, *data), mods=self.mods, seed=1
            )
            measure = OnBench(None)
            measure.bench = Bench(
                settings,
                zygote=self.zygote,
                record=folder,
                budget=Budget(None),
                verb="converge",
                on_event=measure.event,
            )
            self._benches[case] = measure
        return self._benches[case]


def verdict_of(rows: dict[str, dict[str, Any]], sizes: Sizes) -> Verdict:
    """The table of the trials so far."""
    series = Converge(
        lambda *_: Trial(accuracy=None), workers=WORKERS, seeds=max(map(len, rows.values())), techniques=()
    )
    for row in ROWS:
        if row in rows:
            series.trials[row] = [msgspec.convert(rows[row][seed], Trial) for seed in sorted(rows[row])]
            series.mods[row] = sizes.mods(row)
    return judge(series, target=None)


def told(case: str, verdict: Verdict) -> list[str]:
    """The lines of the page for one case."""
    lines = [f"## {case}", "", "| workers | technique | mods | test accuracy | seeds | epochs to target | |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in verdict.rows:
        epochs = "" if row.epochs_to_target is None else f"{row.epochs_to_target:.3g}"
        notes = ["best"] if row.technique == verdict.chosen else []
        notes += [f"diverged at step {row.diverged}"] if row.diverged is not None else []
        notes += [row.trouble] if row.trouble else []
        mods = " ".join(mod for mod in row.mods if not mod.startswith("emulate="))
        cells = [str(row.workers), row.technique, mods, accuracy_words(row), str(row.accuracy.seeds)]
        lines.append(f"| {' | '.join([*cells, epochs, ', '.join(notes)])} |")
    return [*lines, "", f"Target: {verdict.target:.1%}." if verdict.target else "", ""]


def aims(verdicts: dict[str, Verdict]) -> list[str]:
    """The usual table of CIFAR-10: each row adds one technique to the row before. Then the aims."""
    if any(case not in verdicts for case in list(CASES)[:2]):
        return []
    plain, normed = ({row.technique: row for row in verdicts[case].rows} for case in list(CASES)[:2])
    wanted = {
        "one worker": plain.get(ALONE),
        "one worker, batch norm": normed.get(ALONE),
        "eight, naive": plain.get(NAIVE),
        "+ batch norm": normed.get(NAIVE),
        "+ rate × 8": normed.get("rate × 8"),
        "+ warm-up": normed.get("rate × 8, warm-up"),
        "LARS": normed.get("lars"),
        "LAMB": normed.get("lamb, by hand"),
        "auto": normed.get("auto"),
    }
    means = {name: row.accuracy.mean or 0.0 for name, row in wanted.items() if row is not None}
    if len(means) < len(wanted):
        return []
    lines = ["## The field's table", "", "| technique | test accuracy |", "|---|---|"]
    lines += [f"| {name} | {accuracy_words(row)} |" for name, row in wanted.items() if row is not None]
    alone = max(means["one worker"], means["one worker, batch norm"])
    eight = {name: mean for name, mean in means.items() if not name.startswith("one")}
    tried = {f"{name}, {case}": row.accuracy.mean or 0.0 for case, table in (("plain", plain), ("batch norm", normed))
             for name, row in table.items() if name not in (ALONE, "auto")}  # fmt: skip
    best = max(tried, key=tried.__getitem__)
    said = f"Worst of these at eight workers: {min(eight, key=eight.__getitem__)}. "
    said += f"Best by hand of all that were tried: {best} ({tried[best]:.1%}). `auto`: "
    said += f"{(means['auto'] - alone) * 100:+.1f} points of the better single worker, "
    said += f"{(means['auto'] - tried[best]) * 100:+.1f} of the best by hand."
    return [*lines, "", said, ""]


def write_page(kept: Kept, sizes: Sizes) -> Path:
    verdicts = {case: verdict_of(kept.tables[case], sizes) for case in CASES if kept.tables.get(case)}
    about = kept.get(ABOUT, "machine", "")
    head = [
        "# The accuracy table",
        "",
        "Made by `benchmarks/converge.py`; its docstring describes the method.",
        *[f"On {about}."] * bool(about),
    ]
    page = [*head, "", *aims(verdicts), *(line for case, verdict in verdicts.items() for line in told(case, verdict))]
    path = kept.path.with_suffix(".md")
    path.write_text("\n".join(page).rstrip() + "\n")
    return path


def listed(text: str, known: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Parses a comma-separated list of rows. A row's name may itself contain a comma."""
    if text in known:
        return [text]
    names, parts = [], [part.strip() for part in text.split(",")]
    while parts:
        two = ", ".join(parts[:2])
        name, parts = (two, parts[2:]) if two in known else (parts[0], parts[1:])
        if name not in known:
            parser.error(f"--only: unknown row {name!r}; choose from: {'; '.join(known)}")
        names.append(name)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the accuracy of large-batch techniques.")
    parser.add_argument("cases", nargs="*", help=f"cases to run, from: {'; '.join(CASES)}")
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    parser.add_argument("--only", metavar="ROWS", help=f"comma-separated rows to run, from: {'; '.join(ROWS)}")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated seeds")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit; a trial starts only if it fits")
    parser.add_argument("--small", action="store_true", help="smoke test: a few steps on drawn pictures")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks" / "converge.json")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", help="merge these files into --into without running trials"
    )
    args = parser.parse_args()
    rows = listed(args.only, list(ROWS), parser) if args.only else list(ROWS)
    if unknown := set(args.cases) - CASES.keys():
        parser.error(f"unknown case {unknown.pop()!r}; choose from: {'; '.join(CASES)}")
    kept, sizes = Kept(args.into.resolve()), Sizes(args.small)
    if args.merge:
        kept.merge(args.merge)
        print(f"wrote {write_page(kept, sizes)}", file=sys.stderr)
        return
    if args.data is None and not args.small:
        parser.error("--data is missing: give --data DIR, or --small")
    kept.claim(" ".join([*sizes.arguments, args.precision, "real" if args.data else "drawn"]))
    mods = ("resident", *(["precision=bf16"] if args.precision == "bf16" else []))
    # All rows of a seed before the next seed, so that an interrupted table has all its rows.
    wanted = [
        (case, row, seed)
        for seed in args.seeds.split(",")
        for case in args.cases or CASES
        for row in rows
        if row not in NORMED or "--norm" in CASES[case]
    ]
    with unpacked(args.data) as data, tempfile.TemporaryDirectory() as records:
        measure = Trials(sizes, data, mods, Path(records))
        try:
            carry_out(kept, wanted, measure, args.minutes * 60)
        finally:
            measure.zygote.close()
            from tune import machine  # imports torch

            kept.put(ABOUT, "machine", "", f"{machine()}, {args.precision}")
            print(f"wrote {write_page(kept, sizes)}", file=sys.stderr)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
