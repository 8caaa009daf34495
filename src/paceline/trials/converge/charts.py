"""Charts of a convergence table: accuracy by epoch, and the loss between solutions."""

from __future__ import annotations

from statistics import fmean

from paceline.charts.chart import Axis, Band, Chart, Line, Rule, Series
from paceline.trials.converge.series import ALONE, Row, Verdict

COLOURS = ("accent", "communication", "optimizer", "evaluation", "data", "forward", "bad", "other")
THICK, THIN = 2.5, 1.3
TICKS = 12  # epochs; with more, the renderer chooses the ticks


def accuracy(verdict: Verdict) -> list[Chart]:
    """One line per technique, with a band over seeds. Empty if no accuracy was read."""
    series: list[Series] = []
    for number, row in enumerate(verdict.rows):
        columns = _columns(row)
        if not columns:
            continue
        epochs = list(range(1, len(columns) + 1))
        means, lows, highs = ([f(column) for column in columns] for f in (fmean, min, max))
        colour = COLOURS[number % len(COLOURS)]
        series.append(
            Line(
                name=f"{row.workers} × {row.technique}" if row.technique != ALONE else ALONE,
                x=epochs,
                y=means,
                colour=colour,
                dash="dashed" if row.technique == ALONE else "solid",
                width=THICK if row.technique == verdict.chosen else THIN,
                markers=len(columns) == 1,
            )
        )
        if any(low < high for low, high in zip(lows, highs, strict=True)):
            series.append(Band(name=f"seeds of {row.technique}", x=epochs, low=lows, high=highs, colour=colour))
    if not series:
        return []
    longest = max(len(each.x) for each in series)
    return [
        Chart(
            name="accuracy",
            title=f"Accuracy, {verdict.workers} emulated workers",
            caption="Mean over seeds. Bands: lowest and highest seed. Thick: the chosen technique."
            + (" Dotted: the target." if verdict.target is not None else ""),
            x=Axis(
                title="epochs (readings of the accuracy)",
                ticks=[(float(epoch), str(epoch)) for epoch in range(1, longest + 1)] if longest <= TICKS else (),
            ),
            y=Axis(title="accuracy", share=True),
            series=series,
            marks=[Rule(axis="y", at=verdict.target)] if verdict.target is not None else [],
        )
    ]


def loss_lines(verdict: Verdict) -> list[Chart]:
    """The loss along straight lines in weight space. Empty if none was measured."""
    series: list[Line] = []
    for number, row in enumerate(verdict.rows):
        known = [(place, loss) for place, loss in (row.sharpness.line if row.sharpness else []) if loss is not None]
        if known:
            series.append(
                Line(
                    name=f"{row.workers} × {row.technique}",
                    x=[place for place, _ in known],
                    y=[loss for _, loss in known],
                    colour=COLOURS[number % len(COLOURS)],
                    width=THICK if row.technique == verdict.chosen else THIN,
                )
            )
    if not series:
        return []
    losses = [loss for line in series for loss in line.y if loss is not None]
    return [
        Chart(
            name="loss-lines",
            title="Loss between solutions",
            caption="Loss on the last batches, along the straight line in weight space from the one-worker solution to "
            "each technique's solution.",
            x=Axis(ticks=[(0.0, ALONE), (0.5, "half way"), (1.0, "technique")]),
            # The loss between two solutions may be many times that of either.
            y=Axis(title="loss", kind="log" if max(losses) > 10 * min(losses) > 0 else "linear"),
            series=series,
            marks=[Rule(axis="x", at=0.0), Rule(axis="x", at=1.0)],
        )
    ]


def _columns(row: Row) -> list[list[float]]:
    """The accuracies of all seeds at each epoch that every seed reached."""
    length = min(map(len, row.curves), default=0)
    columns = [[value for curve in row.curves if (value := curve[epoch][1]) is not None] for epoch in range(length)]
    return [column for column in columns if column]
