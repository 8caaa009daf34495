"""A larger batch would fit."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.tables.memory import memory_peaks
from paceline.units import size

UNUSED = 0.5  # share of the memory in use: with more, twice the batch does not fit
FILLED = 0.8  # share of the memory that may be used: the rest is for allocations outside torch and for larger batches
MOST = 64  # times the batch: beyond that no learning rate is known to keep the accuracy
STEPS = 8  # steps per epoch, at least
START = 4e-6  # seconds of a kernel that do not grow with the batch
WORTH = 1.05  # the least gain that is worth another learning rate
NEAR = 0.9  # share of the largest batch's gain: the knee
OPTIMIZER = r"_foreach_|_fused_|^Optimizer"


def find(evidence: Evidence) -> Finding | None:
    """Most of the device's memory is free, and a larger batch would use the device better.

    Fixed by `batch=xK`, with the smallest K (a power of two) that gains nine tenths of the gain of the largest batch
    that fits. Predicted: launching, synchronisation and the optimizer stay the same per step; loading, copies and
    kernels (except for their first 4 µs) grow with the batch. The mod changes the mathematics: see `paceline sweep` for
    measured points, and `paceline converge` for the accuracy.
    """
    clock, batch = evidence.clock, evidence.batch
    if clock is None or not batch or not evidence.memory_total or "batch" in evidence.mods:
        return None
    taken = evidence.memory / evidence.memory_total
    if not evidence.memory or taken >= UNUSED:
        return None
    fixed = min(_fixed(evidence), evidence.memory)
    fitting = [k for k in (2, 4, 8, 16, 32, 64) if _fits(evidence, k, fixed) and k <= MOST]
    gains = {k: _gain(evidence, k) for k in fitting}
    if not gains or max(gains.values()) < WORTH:
        return None
    times = next(k for k in fitting if gains[k] >= NEAR * max(gains.values()))
    mod = f"batch=x{times}"
    return Finding(
        rule="memory_unused",
        title=f"{percent(taken)} of the device's memory used: a batch of {batch * times} fits",
        evidence=[
            Figure("memory taken at most", evidence.memory, "bytes"),
            Figure("memory of the device", evidence.memory_total, "bytes"),
            Figure("of that, not for the batch (weights, optimizer)", fixed, "bytes"),
            Figure("batch", batch),
            Figure("largest batch that fits", batch * max(fitting)),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=gains[times],
        how=f"a step of {times} × the samples: launching and optimizer as before, kernels and loading grow",
        advice=f"{command(mod)} (about {size(fixed + (evidence.memory - fixed) * times)}) — fewer, larger steps change "
        "the numbers: paceline sweep shows the knee, paceline converge the accuracy",
    )


def _fixed(evidence: Evidence) -> float:
    """Bytes that do not grow with the batch: those allocated before the traced steps, at the moment of peak memory."""
    peaks = evidence.tables.over_ranks(memory_peaks).filter(pl.col("device") >= 0)
    before = peaks["before"].max() if peaks.height else None
    known = sum(model.bytes for model in evidence.models)
    return float(before) if isinstance(before, int | float) and before > 0 else 4.0 * known


def _fits(evidence: Evidence, times: int, fixed: float) -> bool:
    loader = evidence.loader
    if loader is not None and loader.samples and loader.samples < STEPS * times * evidence.batch:
        return False
    return fixed + (evidence.memory - fixed) * times <= FILLED * evidence.memory_total


def _gain(evidence: Evidence, times: int) -> float:
    """The gain of a batch that is `times` as large."""
    clock = evidence.clock
    assert clock is not None
    growth = _growth(evidence, times)
    after = clock.after(device=-growth, input=-(times - 1) * clock.input)
    return times * clock.wall / after


def _growth(evidence: Evidence, times: int) -> float:
    """Additional device seconds per step."""
    rows = evidence.kernels_by_op.filter(
        (pl.col("kind") != "communication") & ~pl.col("op").str.contains(OPTIMIZER) & (pl.col("calls") > 0)
    )
    mean = pl.col("total") / pl.col("calls")
    later = pl.max_horizontal(mean, times * (mean - START))
    grown = rows.select((pl.col("calls") * (later - mean)).sum()).item()
    return float(grown or 0.0)
