"""The report of `converge`: accuracy and loss of each large-batch technique, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from paceline.advise.commands import command
from paceline.charts.chart import Axis, Band, Chart, Line, Rule, Series
from paceline.record.schema import Run
from paceline.reports.report import Column, Command, Figure, Report, Sentence, Table, Tone
from paceline.trials.converge.series import ALONE, Row, Sharp, Verdict
from paceline.units import count, percent

COLOURS = ("accent", "communication", "optimizer", "evaluation", "data", "forward", "bad", "other")
THICK, THIN = 2.5, 1.3
TICKS = 12  # epochs; with more, the renderer chooses the ticks

Curve = Sequence[tuple[float, float]]  # of one seed: places and losses


def report(
    verdict: Verdict, run: Run, *, losses: Mapping[str, Sequence[Curve]] | None = None, notes: Sequence[Sentence] = ()
) -> Report:
    """`run`: the series, as recorded. `losses`: by technique, the curve of each seed, from the trials' records."""
    rows = {row.technique: row for row in verdict.rows}
    best, alone = rows.get(verdict.chosen or next(iter(verdict.tied), "")), rows.get(ALONE)
    if best is not None and best.accuracy.mean is None:
        best = None
    tie = f"{', '.join(verdict.tied)} overlap over {verdict.seeds} seeds: a tie. The first has the highest mean."
    apart = f"More seeds may tell them apart: --seeds {2 * verdict.seeds}"
    chance = "One seed does not show how much of a difference is chance."
    pattern = "Print the accuracy in the script, or give its pattern: --metric 'acc: ([0-9.]+)'"
    real = best.on_real_workers() if best else []
    said = [
        *[Sentence("The budget ended before all trials were made.", "warn")] * verdict.unfinished,
        *[Sentence(tie, advice=apart)] * bool(verdict.tied),
        *[Sentence(chance, advice="--seeds 3")] * (verdict.seeds == 1 and not verdict.tied),
        *[Sentence("No technique gave an accuracy.", "warn", pattern)] * (best is None),
    ]
    typed = [Command("Run it so, on real workers", command(run, verb="run", more=real))] if real else []
    return Report(
        lead=_lead(verdict),
        figures=_figures(verdict, best, alone if alone and alone.accuracy.mean is not None else None),
        said=[*said, *typed, *notes],
        charts=[*accuracy(verdict), *_losses(verdict, losses or {}), *loss_lines(verdict)],
        tables=[_table(verdict)],
        after=_troubles(verdict),
    )


def headline(verdict: Verdict) -> str:
    """The accuracy of the best technique, for a list."""
    rows, tied = {row.technique: row.accuracy.mean for row in verdict.rows}, verdict.tied
    named = verdict.chosen or next(iter(tied), "")
    mean = rows.get(named)
    if mean is None:
        return "no technique gave an accuracy" if rows else ""
    if len(tied) > 1:
        return f"accuracy {percent(mean)}, a tie of {', '.join(tied[:3])}{', …' * (len(tied) > 3)}"
    return f"accuracy {percent(mean)} with {named}"


def _lead(verdict: Verdict) -> list[Sentence]:
    """What the columns are, which a page says at each of them."""
    found = []
    if radius := _radius(verdict):
        found.append(
            "sharpness: the largest eigenvalue of the loss's Hessian. rise: that of the loss with each weight tensor "
            f"perturbed by {percent(radius, digits=0)} of its norm."
        )
    if verdict.target is not None:
        here = f"Times are measured on this machine, not on {verdict.workers} workers."
        found.append(f"target: {percent(verdict.target)}. {here}")
    return [Sentence(text) for text in found]


def _radius(verdict: Verdict) -> float:
    return next((row.sharpness.radius for row in verdict.rows if row.sharpness), 0.0)


def _troubles(verdict: Verdict) -> list[Sentence]:
    """Trials without a result; and sharpness that could not be measured, by the reason, which is often the same."""
    found = [Sentence(f"{row.technique}: {row.trouble}", "warn") for row in verdict.rows if row.trouble][:20]
    reasons: dict[str, list[str]] = {}
    for row in verdict.rows:
        if row.sharpness is not None and row.sharpness.trouble:
            reasons.setdefault(row.sharpness.trouble, []).append(row.technique)
    return [*found, *(Sentence(f"Sharpness of {', '.join(n)}: {why}", "warn") for why, n in reasons.items())]


def _figures(verdict: Verdict, best: Row | None, alone: Row | None) -> list[Figure]:
    said = compared = within = ""
    against: list[Figure] = []
    if best is not None and best.accuracy.mean is not None:
        said = f"{_standing(verdict)}: {best.technique}, {percent(best.accuracy.mean)}"
        if alone is not None and alone.accuracy.mean is not None:
            apart = (best.accuracy.mean - alone.accuracy.mean) * 100
            same = _overlap(best, alone)
            compared = f"; {abs(apart):.1f} points {'above' if apart >= 0 else 'below'} one worker"
            within = "within the spread over seeds" if same else ""
            how = (
                "Accuracy of the best technique minus accuracy of one worker, in percentage points. Within the spread "
                "over seeds, the two cannot be told apart."
            )
            tone: Tone = "warn" if apart < 0 and not same else "good" if verdict.seeds > 1 else ""
            against = [Figure("against one worker", f"{apart:+.1f} points", how, within, tone)]
    how = "The batch is this many times the script's own; the workers are emulated on this machine."
    figures = [Figure("emulated workers", f"{verdict.workers:,}", how, count(verdict.seeds, "seed"))]
    if best is not None and best.accuracy.mean is not None:
        label = "highest of one seed" if verdict.seeds == 1 else "best technique" if verdict.chosen else "highest mean"
        how = "The technique with the highest mean accuracy over seeds."
        detail = f"{percent(best.accuracy.mean)} {_spread(best)}".strip()
        said += compared + (f", {within}" if within else "")
        tone = "good" if verdict.proven else ""
        figures.append(Figure(label, best.technique, how, detail, tone, said=said))
    if alone is not None and alone.accuracy.mean is not None:
        how = "Mean accuracy over seeds of the unmodified script."
        figures.append(Figure("one worker", percent(alone.accuracy.mean), how, _spread(alone)))
    diverged = [row.technique for row in verdict.rows if row.diverged is not None]
    how = "Techniques with a seed whose loss was not finite."
    share = Figure("diverged", f"{len(diverged)} of {len(verdict.rows)}", how, ", ".join(diverged[:3]), "warn")
    return [*figures, *against, *[share] * bool(diverged)]


def _standing(verdict: Verdict) -> str:
    if verdict.tied:
        return "highest mean"
    return f"{'best' if verdict.proven else 'highest'} of {verdict.workers} workers"


def _overlap(one: Row, other: Row) -> bool:
    a, b = one.accuracy, other.accuracy
    if a.low is None or a.high is None or b.low is None or b.high is None or min(a.seeds, b.seeds) < 2:
        return False
    return a.low <= b.high and b.low <= a.high


def _half(row: Row) -> float:
    found = row.accuracy
    return (found.high - found.low) / 2 if found.low is not None and found.high is not None else 0.0


def _spread(row: Row) -> str:
    """Half the range over seeds."""
    return f"± {_half(row) * 100:.1f} points over {row.accuracy.seeds} seeds" if row.accuracy.seeds > 1 else ""


def accuracy_words(row: Row) -> str:
    """`71.2 ± 0.4 %`: the mean, and half the range over seeds."""
    found = row.accuracy
    if found.mean is None or found.low is None or found.high is None:
        return "–"
    return percent(found.mean) if found.seeds < 2 else f"{found.mean * 100:.1f} ± {_half(row) * 100:.1f} %"


def _curvature(sharp: Sharp | None) -> str:
    """The largest eigenvalue, marked ≈ if the iteration did not converge."""
    if sharp is None or sharp.eigenvalue is None:
        return "–"
    return f"{'' if sharp.settled else '≈ '}{sharp.eigenvalue:.3g}"


def _note(row: Row, verdict: Verdict) -> str:
    said = ["best" if verdict.proven else "highest"] * (row.technique == verdict.chosen)
    said += ["tie"] * (row.technique in verdict.tied)
    said += [f"diverged at step {row.diverged:,}"] if row.diverged is not None else []
    return ", ".join([*said, *["not measured"] * bool(row.trouble)])


def _table(verdict: Verdict) -> Table:
    rows: list[dict[str, Any]] = []
    for row in verdict.rows:
        sharp, found, epochs = row.sharpness, row.accuracy, row.epochs_to_target
        ranged = found.seeds > 1 and found.low is not None and found.high is not None
        rows.append(
            {
                "technique": row.technique,
                "workers": row.workers,
                "accuracy": found.mean,
                "shown": accuracy_words(row),
                "spread": f"{percent(found.low or 0.0)} to {percent(found.high or 0.0)}" if ranged else "",
                "epochs": epochs,
                "to_target": "–" if epochs is None else f"{epochs:.3g} epoch{'s' * (epochs > 1)}",
                "seconds": row.seconds_to_target,
                "samples_per_s": row.samples_per_s or None,
                "diverged": row.diverged,
                "curvature": sharp.eigenvalue if sharp else None,
                "sharpness": _curvature(sharp),
                "rise": sharp.rise if sharp else None,
                "rises": "–" if sharp is None or sharp.rise is None else f"{sharp.rise:+.2g}",
                "mods": " ".join(mod for mod in row.mods if not mod.startswith("emulate=")),
                "chosen": row.technique == verdict.chosen,
                "note": _note(row, verdict),
            }
        )
    target = f"the target, {percent(verdict.target)}" if verdict.target is not None else "the target"
    rough = ", ".join(row.technique for row in verdict.rows if row.sharpness and not row.sharpness.settled)
    readings = f"Readings of the accuracy until {target}: mean over seeds. Empty if a seed missed the target."
    time = f"Time until {target}: mean over seeds. On this machine, not on {verdict.workers} workers."
    hessian = "Largest eigenvalue of the loss's Hessian at the solution: mean over seeds. Small means flat."
    perturbed = f"each weight tensor perturbed by {percent(_radius(verdict), digits=0)} of its norm: mean over seeds."
    sharp_is_wide = any(row.sharpness for row in verdict.rows)
    return Table(
        name="techniques",
        title="Techniques",
        about=f"The iteration for the sharpness did not converge for {rough}: read it as a rough number."
        if rough
        else "",
        columns=(
            Column("technique", "technique", "Name of the technique, or the mods that were joined by +.", wrap=True),
            Column("workers", "workers", "Workers that were emulated.", "count", narrow=False),
            Column("accuracy", "accuracy", "Last accuracy of a run: mean over seeds.", "share", text="shown"),
            Column("spread", "over seeds", "Accuracy of the lowest and of the highest seed.", on="page"),
            Column("samples_per_s", "samples/s", "Mean over seeds, on this machine.", "rate", wide=sharp_is_wide),
            Column("epochs", "to target", readings, "number", text="to_target"),
            Column("seconds", "time", time, "seconds", wide=True),
            Column("diverged", "diverged at", "First step at which a seed's loss was not finite.", "count", on="page"),
            Column("curvature", "sharpness", hessian, "number", text="sharpness"),
            Column("rise", "rise", f"Rise of the loss with {perturbed}", "number", text="rises"),
            Column("note", "", on="terminal", wrap=True),
            Column("mods", "mods", "Mods of the technique, as --mod takes them.", wrap=True, on="page"),
        ),
        rows=rows,
        mark="chosen" if verdict.proven else "",
        good=True,
    )


def accuracy(verdict: Verdict) -> list[Chart]:
    """One line per technique, with a band over seeds. Empty if no accuracy was read."""
    columns = {row.technique: _columns(row) for row in verdict.rows}
    series = _over_seeds(verdict, {name: (range(1, len(found) + 1), found) for name, found in columns.items()})
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


def _columns(row: Row) -> list[list[float]]:
    """The accuracies of all seeds at each epoch that every seed reached."""
    length = min(map(len, row.curves), default=0)
    columns = [[value for curve in row.curves if (value := curve[epoch][1]) is not None] for epoch in range(length)]
    return [column for column in columns if column]


def _losses(verdict: Verdict, by_technique: Mapping[str, Sequence[Curve]]) -> list[Chart]:
    """The training loss over the run, one line per technique, with a band over seeds. Empty if no loss was read."""
    places = {}
    for technique, curves in by_technique.items():
        end = max(curve[-1][0] for curve in curves)
        columns = list(zip(*curves, strict=False))
        x, losses = [each[0][0] / end for each in columns], [[loss for _, loss in each] for each in columns]
        places[technique] = (x, losses)
    if not (series := _over_seeds(verdict, places)):
        return []
    return [
        Chart(
            name="losses",
            title="Training loss",
            caption="Loss of rank 0, as the script computed it: mean over neighbouring steps and over seeds. Bands: "
            "lowest and highest seed. All techniques see the same samples, in batches of different sizes, so the x "
            "axis is the share of the run.",
            x=Axis(title="share of the run", share=True),
            y=Axis(title="loss"),
            series=series,
        )
    ]


def _over_seeds(
    verdict: Verdict, by_technique: Mapping[str, tuple[Sequence[float], list[list[float]]]]
) -> list[Series]:
    """For each technique, a line through the means of the seeds' values at each place, and a band of their range."""
    series: list[Series] = []
    for number, row in enumerate(verdict.rows):
        x, columns = by_technique.get(row.technique, ((), []))
        if not columns:
            continue
        means, lows, highs = ([f(column) for column in columns] for f in (fmean, min, max))
        colour, alone = COLOURS[number % len(COLOURS)], row.technique == ALONE
        series.append(
            Line(
                name=ALONE if alone else f"{row.workers} × {row.technique}",
                x=list(x),
                y=means,
                colour=colour,
                dash="dashed" if alone else "solid",
                width=THICK if row.technique == verdict.chosen else THIN,
                markers=len(columns) == 1,
            )
        )
        if any(low < high for low, high in zip(lows, highs, strict=True)):
            series.append(Band(name=f"seeds of {row.technique}", x=list(x), low=lows, high=highs, colour=colour))
    return series


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
