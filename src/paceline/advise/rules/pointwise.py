"""Much of the compute is kernels that could be fused."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent

SHARE = 0.3  # share of the device's compute: with less, compiling for half a minute does not pay off
FUSED = 2.0  # speed-up: one kernel replaces a chain of kernels that each read and write everything
LAUNCHED = 0.3  # share of launching in forward and backward that is saved
POINTWISE = r"elementwise|vectorized|reduce_kernel|softmax|layer_norm|LayerNorm|dropout|GeluCUDA|CatArray|index"
OPTIMIZER = r"_foreach_|_fused_|^Optimizer|multi_tensor"
MOD = "compile"


def find(evidence: Evidence) -> Finding | None:
    """Much of the device's compute is kernels that read and write whole tensors but compute little (additions,
    activations, norms, softmax), one after the other.

    Fixed by `compile`, which fuses them. Predicted: these kernels take half of their time, and three tenths of the
    launches in forward and backward are saved.
    """
    clock = evidence.clock
    if clock is None or {"compile", "cuda_graphs"} & evidence.mods:
        return None
    rows = evidence.kernels_by_op.filter(pl.col("kind") == "compute")
    pointwise = rows.filter(
        pl.col("kernel").str.contains(POINTWISE) & ~pl.col("op").str.contains(OPTIMIZER) & ~pl.col("tensor_cores")
    )
    time, calls, compute = (
        float(value) for value in (pointwise["total"].sum(), pointwise["calls"].sum(), evidence.device["compute"])
    )
    if not compute or time < SHARE * compute:
        return None
    phases = evidence.phases
    own = phases["wall"] - evidence.waited - phases["data"]
    launching = clock.launching * LAUNCHED * (phases["forward"] + phases["backward"]) / own if own > 0 else 0.0
    return Finding(
        rule="pointwise",
        title=f"{percent(time / compute)} of the device's compute is kernels that could be fused",
        evidence=[
            Figure("such kernels", calls, "per step"),
            Figure("time in them", time, "s"),
            Figure("compute of the device", compute, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=MOD,
        predicted_gain=clock.gain(device=time * (1 - 1 / FUSED), launching=min(launching, clock.launching)),
        how="these kernels take half of their time; three tenths of the launches in forward and backward are saved",
        advice=f"{command(MOD)} — the first steps take half a minute longer",
    )
