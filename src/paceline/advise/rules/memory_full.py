"""Memory is nearly full."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import command, percent
from paceline.units import seconds

FULL = (
    0.9  # of the device's memory: torch's allocator begins to give memory back and to ask again, and odd batches fail
)
HOST_FULL = 0.95  # of the host's: the kernel begins to write pages out
ASKING = r"^(cuda|hip)(Malloc|Free)(Async)?$|^cuMem(Create|Release|Map|Unmap)"
MOD = "checkpointing"


def find(evidence: Evidence) -> Finding | None:
    """Memory is nearly full: the allocator asks the driver again and again, and a batch of another shape may fail.

    Mended by `checkpointing`, which computes blocks again in backward instead of keeping what they computed, or by
    `accumulate=2`; both take time. Predicted: forward once more; what the host spent in asking the driver is gained.
    Where it is the host's memory, there is no mod: load in fewer processes.
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
        + (f", and {seconds(asking)} of a step in asking for more" if asking > 0.01 * clock.wall else ""),
        evidence=[
            Figure("share of the memory in use", share),
            Figure("memory that torch took at most", evidence.memory, "bytes"),
            Figure("memory of the device", evidence.memory_total, "bytes"),
            Figure("calls that ask the driver for memory", times, "a step"),
            Figure("time in them", asking, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod="" if mended else MOD,
        predicted_gain=None if mended else clock.gain(device=-forward, launching=asking),
        how="" if mended else "blocks are computed again: forward once more; nothing asks the driver",
        advice="A smaller batch" if mended else f"{command(MOD)} — or --mod accumulate=2: less memory, more time",
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
            Figure("memory in use at most", int(number(samples["memory"].max())), "bytes"),
            Figure("memory of the host", int(number(samples["memory_total"].max())), "bytes"),
        ],
        advice="Fewer workers or loader processes, or a smaller batch: what does not fit is written to disk",
    )
