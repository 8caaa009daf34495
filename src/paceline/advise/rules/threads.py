"""Threads do not fit the cores."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command

LARGE = 50e-6  # seconds of an op on one thread: torch splits longer ops between threads, roughly
MANY = 0.3  # share of a step lost per additional thread on a core: threads wait for each other at each op
WORTH = 1.05  # a smaller gain is not reported


def find(evidence: Evidence) -> Finding | None:
    """On a CPU, the threads of all workers together are more than the cores, so that they wait for each other; or fewer
    than half of the cores, so that cores are idle.

    Fixed by `threads=N`: the cores divided by the workers. Predicted for too few threads: ops that are long enough are
    split over all threads; for too many: a step loses three tenths per additional thread on a core.
    """
    if evidence.has_device or evidence.run is None or not evidence.cores or "threads" in evidence.mods:
        return None
    if any(worker.gpus for worker in evidence.run.workers) or not evidence.traces:
        return None
    mine = [
        evidence.facts[worker.rank].threads if worker.rank in evidence.facts else worker.threads
        for worker in evidence.run.workers
    ]
    total, cores = sum(mine), evidence.cores
    fitting = max(cores // len(mine), 1)
    if cores // 2 < total <= cores or fitting == max(mine):
        return None
    if total > cores:
        gain, what = 1 + MANY * (total / cores - 1), "share"
        how = "a step loses three tenths per additional thread on a core"
    else:
        shared = _shared_out(evidence)
        gain, what = 1 / (1 - shared + shared * max(mine) / fitting), "are left of"
        how = "ops that are long enough are split over all threads"
    if gain < WORTH:
        return None
    mod = f"threads={fitting}"
    return Finding(
        rule="threads",
        title=f"{total} thread{'s' * (total > 1)} of {len(mine)} worker{'s' * (len(mine) > 1)} "
        + (f"share {cores} cores" if what == "share" else f"on {cores} cores"),
        evidence=[
            Figure("threads of a worker", max(mine)),
            Figure("workers", len(mine)),
            Figure("cores", cores),
            *([Figure("share of a step in ops that threads could split", shared)] if what != "share" else []),
        ],
        mod=mod,
        predicted_gain=gain,
        how=how,
        advice=f"{command(mod)} — a setting in the script or OMP_NUM_THREADS overrides the mod",
    )


def _shared_out(evidence: Evidence) -> float:
    """The fraction of a traced step in ops that are long enough to be split between threads."""
    rows = evidence.ops.filter((pl.col("kind") == "op") & (pl.col("host_self") > LARGE * pl.col("calls")))
    wall = evidence.phases.get("wall", 0.0)
    return min(float(rows["host_self"].sum()) / wall, 1.0) if wall else 0.0
