"""Draws what `tune` found: samples a second before and after each mod, and all of it together."""

from __future__ import annotations

from pathlib import Path

from paceline.record.private import make_folder, opened
from paceline.trials.tune.verdict import Verdict

GREY, KEPT, NOT_KEPT = "0.75", "tab:blue", "tab:orange"


def draw(verdict: Verdict, path: Path, *, title: str) -> None:
    """Writes an SVG. Imports matplotlib only here: it takes longer than all the rest of this process."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    bars = [
        (row.mod, row.before, row.after, row.gain, KEPT if row.kept else NOT_KEPT)
        for row in reversed(verdict.mods)
        if row.before is not None and row.after is not None and row.gain is not None
    ]
    final = verdict.final
    if final is not None and final.mods and verdict.baseline is not None:
        bars.append(("together", verdict.baseline.samples_per_s, final.samples_per_s, final.gain, "tab:green"))
    figure = Figure(figsize=(7.2, 1.4 + 0.45 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for place, (_, before, after, gain, colour) in enumerate(bars):
        axes.barh(place + 0.19, before, 0.36, color=GREY)
        axes.barh(place - 0.19, after, 0.36, color=colour)
        # The table's gain, of pairs of trials: a little other than the ratio of two bars, which are means over time.
        axes.annotate(f" {gain:.2f}×", (max(before, after), place), va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
    axes.set_xlabel("samples/s")
    axes.margins(x=0.12)
    axes.set_title(f"{title}: before and after each mod", fontsize=11)
    legend = {"before": GREY, "after, kept": KEPT, "after, not kept": NOT_KEPT}
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in legend.items()],
        loc="outside lower center",
        ncols=len(legend),
        fontsize=8,
        frameon=False,
    )
    axes.grid(axis="x", alpha=0.25)
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")
