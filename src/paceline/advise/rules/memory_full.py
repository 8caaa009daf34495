"""Memory is nearly full."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.units import seconds

FULL = 0.9  # share of the memory in use: torch's allocator begins to free and reallocate, and larger batches may fail
HOST_FULL = 0.95  # share of the host's memory in use: the kernel begins to swap pages out
ASKING = r"^(cuda|hip)(Malloc|Free)(Async)?$|^cuMem(Create|Release|Map|Unmap)"
MOD = "checkpointing"


def find(evidence: Evidence) -> Finding | None:
    """Memory is nearly full: the allocator often asks the driver for memory, and a batch of another shape may fail.

    Fixed by `checkpointing`, which recomputes blocks in backward instead of keeping their activations, or by
    `accumulate=2`; both cost time. Predicted: one more forward; the host's time in driver calls for memory is saved. If
    the host's memory is full, no mod helps: use fewer loader processes.
    """
    clock = evidence.clock
    if clock is None:
        return _host(evidence)
    taken = evidence.memory / evidence.memory_total if evidence.memory_total else 0.0
    sampled = evidence.gpu_samples.select((pl.col("memory") / pl.col("memory_total")).max()).item()
    share = max(taken, sampled or 0.0)
    if share < FULL:
        return None
    calls = evidence.ops.filter((pl.col("kind") == "runtime") & pl.col("name").str.contains(ASKING))
    asking, times = float(calls["host_self"].sum()), float(calls["calls"].sum())
    phases = evidence.phases
    working = phases["forward"] + phases["backward"] + phases["optimizer"]
    forward = clock.device * phases["forward"] / working if working else 0.0
    mended = {"checkpointing", "accumulate"} & evidence.mods
    return Finding(
        rule="memory_full",
        title=f"{percent(share)} of the device's memory used"
        + (f", and {seconds(asking)} per step in driver calls for memory" if asking > 0.01 * clock.wall else ""),
        evidence=[
            Figure("share of the memory in use", share),
            Figure("peak memory of torch", evidence.memory, "bytes"),
            Figure("memory of the device", evidence.memory_total, "bytes"),
            Figure("driver calls for memory", times, "per step"),
            Figure("time in them", asking, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod="" if mended else MOD,
        predicted_gain=None if mended else clock.gain(device=-forward, launching=asking),
        how="" if mended else "blocks are recomputed: one more forward; no driver calls for memory",
        advice="Use a smaller batch" if mended else f"{command(MOD)} — or --mod accumulate=2: less memory, more time",
    )


def _host(evidence: Evidence) -> Finding | None:
    samples = evidence.host_samples
    if not samples.height:
        return None
    share = samples.select((pl.col("memory") / pl.col("memory_total")).max()).item() or 0.0
    if share < HOST_FULL:
        return None
    return Finding(
        rule="memory_full",
        title=f"{percent(share)} of the host's memory used",
        evidence=[
            Figure("peak memory in use", int(number(samples["memory"].max())), "bytes"),
            Figure("memory of the host", int(number(samples["memory_total"].max())), "bytes"),
        ],
        advice="Use fewer workers, fewer loader processes or a smaller batch: memory that does not fit is swapped out",
    )
