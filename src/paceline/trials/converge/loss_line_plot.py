"""Draws the loss along straight lines through the weights: from one worker's solution to each technique's."""

from __future__ import annotations

from pathlib import Path

from paceline.record.private import make_folder, opened
from paceline.trials.converge.series import ALONE, Verdict


def draw(verdict: Verdict, path: Path, *, title: str) -> None:
    """Writes an SVG. Imports matplotlib only here: it takes longer than all the rest of this process."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    all_losses: list[float] = []
    for row in verdict.rows:
        line = row.sharpness.line if row.sharpness else []
        known = [(place, loss) for place, loss in line if loss is not None]
        if not known:
            continue
        places, losses = zip(*known, strict=True)
        axes.plot(
            places,
            losses,
            linewidth=2.5 if row.technique == verdict.chosen else 1.3,
            label=f"{row.workers} × {row.technique}",
        )
        all_losses += losses
    for place in (0.0, 1.0):
        axes.axvline(place, color="0.6", linewidth=0.8, linestyle=":")
    if all_losses and max(all_losses) > 10 * min(all_losses) > 0:
        axes.set_yscale("log")  # what lies between two solutions may be a mountain
    axes.set_xticks([0.0, 0.5, 1.0], [ALONE, "half way", "technique"])
    axes.set_ylabel("loss of the last batches")
    axes.set_title(f"{title}: between solutions", fontsize=11)
    axes.grid(alpha=0.25)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    make_folder(path.parent)
    with opened(path) as file:
        figure.savefig(file, format="svg")
