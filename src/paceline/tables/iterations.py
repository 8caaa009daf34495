"""Which steps took longer than usual, and what made them."""

from __future__ import annotations

import polars as pl

from paceline.record.phases import PHASES
from paceline.record.settling import settle

FAR = 5.0  # times the usual scatter of step times: a step beyond that is no chance
APART = 0.2  # … and a fifth longer than usual: less is not worth a look


def warm_up(steps: pl.DataFrame) -> int:
    """How many first steps are warm-up, by rank 0's times; a third of them where the times never settle."""
    first = steps.filter(pl.col("rank") == pl.col("rank").min())
    times = (first["total"] - first["evaluation"]).to_list()
    found = settle(times)
    return len(times) // 3 if found is None else found


def iterations(steps: pl.DataFrame) -> pl.DataFrame:
    """A row a rank and step (of `Tables.steps`): rank, step, total, loss, samples, warm_up (whether it is left out of
    all measures), usual (the median of its rank's steps), excess (total - usual), outlier, why (the part that took most
    longer than its own median; empty where it is no outlier, or where the step was not split). Seconds."""
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
