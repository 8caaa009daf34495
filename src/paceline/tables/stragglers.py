"""The rank that keeps the others waiting, since which step, and in which phase.

After a collective all ranks look equally slow. So a rank's own time counts: its step without the time in which it
waited for other ranks.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.record.phases import COMMUNICATION, PHASES
from paceline.tables.iterations import warm_up

OWN = tuple(phase for phase in PHASES if phase != COMMUNICATION)  # a rank's own time
NOTABLE = 0.05  # of a step: a smaller lag is not reported
MOSTLY = 0.8  # of the steps since the lag began


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
    """One row per rank, slowest first: rank, own (median seconds of its own work), behind (median seconds), share (of a
    step), slow (whether the lag is worth reporting), since (the step from which on the rank has been slow; null if it
    is not), cause (the phase that is longest compared with the other ranks), excess (seconds of that phase). Without
    the warm-up."""
    skipped = warm_up(steps) if steps.height else 0
    settled = steps.filter(pl.col("step") > skipped)
    late = lags(settled)
    rows = []
    for (rank,), table in late.group_by("rank", maintain_order=True):
        own, behind = table["own"].to_numpy(), table["behind"].to_numpy()
        step = float(np.median(settled.filter(pl.col("rank") == rank)["total"].to_numpy()))
        is_late = behind > NOTABLE * step
        since = _since(is_late)
        # The lag of a rank that became slow during the run is measured from that step on.
        after = behind if since is None else behind[since:]
        cause, excess = _cause(settled, rank, table["step"].to_numpy()[since or 0])
        lag = float(np.median(after))
        rows.append(
            {
                "rank": rank,
                "own": float(np.median(own)),
                "behind": lag,
                "share": lag / step if step else 0.0,
                "slow": since is not None,
                "since": None if since is None else int(table["step"][since]),
                "cause": cause,
                "excess": excess,
            }
        )
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").sort(["behind", "rank"], descending=[True, False])


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


def _since(is_late: np.ndarray) -> int | None:
    """The first step from which to the end the rank is late in most steps; None if there are too few such steps."""
    count = len(is_late)
    late = np.cumsum(is_late[::-1])[::-1]
    share = late / np.arange(count, 0, -1)
    good = np.flatnonzero(is_late & (share >= MOSTLY))
    if not len(good) or count - good[0] < max(3, count // 10):
        return None
    return int(good[0])


def _cause(steps: pl.DataFrame, rank: object, first: int) -> tuple[str, float]:
    """The phase in which this rank is furthest behind the others."""
    late = steps.filter((pl.col("step") >= first) & pl.col("split"))
    mine, others = late.filter(pl.col("rank") == rank), late.filter(pl.col("rank") != rank)
    more = {part: _median(mine[part]) - _median(others[part]) for part in OWN}
    part = max(more, key=lambda name: more[name])
    return part, more[part]


def _median(values: pl.Series) -> float:
    found = values.median()
    return float(found) if isinstance(found, int | float) else 0.0
