"""Threads do not fit the cores."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import command

LARGE = 50e-6  # seconds of an op of one thread: torch shares out what takes longer, roughly
MANY = 0.3  # of a step that is lost for each time over that threads share cores: they wait for each other at each op
WORTH = 1.05  # a gain below that is none


def find(evidence: Evidence) -> Finding | None:
    """On a CPU, all workers' threads together are more than the cores, so that they wait for each other; or fewer than
    half of them, so that cores have nothing to do.

    Mended by `threads=N`, the cores by the workers. Predicted: too few: the time in ops long enough to be shared out
    goes down by the number of threads; too many: three tenths for each time over that threads share a core.
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
        how = "a step loses three tenths for each time over that threads share a core"
    else:
        shared = _shared_out(evidence)
        gain, what = 1 / (1 - shared + shared * max(mine) / fitting), "are left of"
        how = "ops that are long enough are shared out over all threads"
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
            *([Figure("share of a step in ops that could be shared out", shared)] if what != "share" else []),
        ],
        mod=mod,
        predicted_gain=gain,
        how=how,
        advice=f"{command(mod)} — the script or OMP_NUM_THREADS may say otherwise: it has the last word",
    )


def _shared_out(evidence: Evidence) -> float:
    """The share of a traced step in ops that take long enough to be shared out between threads."""
    rows = evidence.ops.filter((pl.col("kind") == "op") & (pl.col("host_self") > LARGE * pl.col("calls")))
    wall = evidence.phases.get("wall", 0.0)
    return min(float(rows["host_self"].sum()) / wall, 1.0) if wall else 0.0
