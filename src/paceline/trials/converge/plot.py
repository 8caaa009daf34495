"""Draws a convergence table: the accuracy against epochs, a line for each technique, all seeds as a band."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from paceline.record.private import make_folder, opened
from paceline.trials.converge.series import ALONE, Row, Verdict


def draw(verdict: Verdict, path: Path, *, title: str) -> None:
    """Writes an SVG. Imports matplotlib only here: it takes longer than all the rest of this process."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for row in verdict.rows:
        columns = _columns(row)
        if not columns:
            continue
        epochs = range(1, len(columns) + 1)
        means, lows, highs = ([f(column) * 100 for column in columns] for f in (fmean, min, max))
        [line] = axes.plot(
            epochs,
            means,
            marker="o" if len(columns) == 1 else None,
            linewidth=2.5 if row.technique == verdict.chosen else 1.3,
            linestyle="--" if row.technique == ALONE else "-",
            label=f"{row.workers} × {row.technique}" if row.technique != ALONE else ALONE,
        )
        if any(low < high for low, high in zip(lows, highs, strict=True)):
            axes.fill_between(epochs, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    if verdict.target is not None:
        axes.axhline(verdict.target * 100, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xlabel("epochs (readings of the accuracy)")
    axes.set_ylabel("accuracy, %")
    axes.set_title(f"{title}: {verdict.workers} emulated workers", fontsize=11)
    axes.grid(alpha=0.25)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")


def _columns(row: Row) -> list[list[float]]:
    """The seeds' accuracies at each epoch that all of them have told."""
    length = min(map(len, row.curves), default=0)
    columns = [[value for curve in row.curves if (value := curve[epoch][1]) is not None] for epoch in range(length)]
    return [column for column in columns if column]
