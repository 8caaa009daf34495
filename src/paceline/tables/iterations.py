"""Steps that took longer than usual, and the phase that made them long."""

from __future__ import annotations

import polars as pl

from paceline.record.phases import AT_SEAMS, OTHER, PHASES
from paceline.tables.figures import columns_in, counted_steps
from paceline.tables.figures import warm_up as warm_up_of

FAR = 5.0  # times the usual scatter of step times: a step beyond that is not chance
APART = 0.2  # of the usual step, at least, that an outlier is longer: less is not worth a look


def warm_up(steps: pl.DataFrame) -> int:
    """The number of warm-up steps, by rank 0's times: see `figures.warm_up`."""
    first = steps.filter(pl.col("rank") == pl.col("rank").min())
    return warm_up_of(columns_in(first)[first["rank"][0]]) if first.height else 0


def counted(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps that count for every figure: see `figures.counted_steps`."""
    first = steps.filter(pl.col("rank") == pl.col("rank").min())
    numbers = counted_steps(columns_in(first)[first["rank"][0]]) if first.height else []
    return steps.filter(pl.col("step").is_in(numbers))


def measured(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps with the phases that were measured: where no step was split, those at seams are null, and their time is
    part of `other`."""
    if steps["split"].any():
        return steps
    return steps.with_columns(
        pl.sum_horizontal(OTHER, *AT_SEAMS).alias(OTHER), *(pl.lit(None, pl.Float64).alias(part) for part in AT_SEAMS)
    )


def iterations(steps: pl.DataFrame) -> pl.DataFrame:
    """One row per rank and step (of `Tables.steps`): rank, step, total, loss, samples, warm_up (whether the step is
    excluded from measurements), usual (the median of the rank's steps), excess (total - usual), outlier, why (the phase
    that exceeds its own median most; empty if the step is no outlier or was not split). Seconds."""
    skipped = warm_up(steps)
    usual = {part: pl.col(part).filter(pl.col("split")).median().over("rank") for part in PHASES}
    settled = pl.col("step") > skipped
    middle = pl.col("total").filter(settled).median().over("rank")
    scatter = 1.4826 * (pl.col("total") - middle).abs().filter(settled).median().over("rank")
    table = steps.with_columns(warm_up=~settled, usual=middle, scatter=scatter).with_columns(
        excess=pl.col("total") - pl.col("usual"),
        **{f"more_{part}": pl.col(part) - usual[part].fill_null(0.0) for part in PHASES},
    )
    most = pl.max_horizontal(f"more_{part}" for part in PHASES)
    why = pl.lit("")
    for part in PHASES:
        why = pl.when(pl.col(f"more_{part}") == most).then(pl.lit(part)).otherwise(why)
    far = pl.max_horizontal(FAR * pl.col("scatter"), APART * pl.col("usual"))
    return (
        table.with_columns(outlier=~pl.col("warm_up") & (pl.col("excess") > far))
        .with_columns(why=pl.when(pl.col("outlier") & pl.col("split")).then(why).otherwise(pl.lit("")))
        .select("rank", "step", "total", "loss", "samples", "warm_up", "usual", "excess", "outlier", "why")
    )
