"""The rank that keeps the others waiting, since which step, and in which phase.

What a delay is, `delays` says.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from paceline.tables.figures import all_delays, columns_in


def lags(steps: pl.DataFrame) -> pl.DataFrame:
    """Rank × step, for a heat map: rank, step, own (seconds of its own work), behind (own minus the median of the other
    ranks in the same step). Only steps that all ranks made and that were split; empty with one rank."""
    ranks = steps["rank"].n_unique()
    if ranks < 2:
        return pl.DataFrame(schema={"rank": pl.Int64, "step": pl.Int64, "own": pl.Float64, "behind": pl.Float64})
    own = (
        steps.filter("split")
        .select("rank", "step", own=pl.col("total") - pl.col("communication"))
        .filter(pl.len().over("step") == ranks)
        .sort("step", "rank")
    )
    grid = own["own"].to_numpy().reshape(-1, ranks)
    behind = np.empty_like(grid)
    for rank in range(ranks):
        behind[:, rank] = grid[:, rank] - np.median(np.delete(grid, rank, axis=1), axis=1)
    return own.with_columns(behind=pl.Series(behind.ravel())).sort("rank", "step")


def stragglers(steps: pl.DataFrame) -> pl.DataFrame:
    """The delays of all ranks (`delays.Delay`), slowest first: rank, own, behind, share, slow, since, cause, excess. Of
    the steps that count."""
    found = all_delays(columns_in(steps)) if steps.height else []
    return pl.DataFrame([msgspec.structs.asdict(each) for each in found], schema=SCHEMA, orient="row")


SCHEMA = {
    "rank": pl.Int64,
    "own": pl.Float64,
    "behind": pl.Float64,
    "share": pl.Float64,
    "slow": pl.Boolean,
    "since": pl.Int64,
    "cause": pl.String,
    "excess": pl.Float64,
}
