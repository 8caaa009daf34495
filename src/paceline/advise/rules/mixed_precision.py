"""Mixed precision is off."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.advise.matmul_cost import products, tensor_cores_for

SHARE = 0.1  # share of float32 products in the device's compute: with less, precision makes a step hardly shorter
CASTS = 0.1  # share of launching that autocast adds: it casts weights and inputs, each with a kernel of its own


def find(evidence: Evidence) -> Finding | None:
    """Matrix products are computed in float32, although the device has tensor cores.

    Fixed by `precision=bf16` (`fp16` before Ampere). Predicted: those products run six times as fast if they were on
    ordinary cores, 1.7 times if in TF32; the host launches a tenth more, for the casts. If the host sets the step time,
    the gain is small until its launches are reduced.
    """
    found, clock = products(evidence), evidence.clock
    half, bfloat = tensor_cores_for(evidence)
    if found is None or clock is None or not half or "precision" in evidence.mods or found.share < SHARE:
        return None
    mod = "precision=bf16" if bfloat else "precision=fp16"
    late = " Alone it gains little: the device waits for the host." if clock.host_decides else ""
    return Finding(
        rule="mixed_precision",
        title=f"{percent(found.share)} of the device's compute is matrix products in float32",
        evidence=[
            Figure("products in float32 on ordinary cores", found.plain, "s"),
            Figure("products in float32 on tensor cores (TF32)", found.rounded, "s"),
            Figure("compute of the device", found.compute, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=clock.gain(device=found.saved_by_half(), launching=-CASTS * clock.launching),
        how="these products run 6 × as fast (1.7 × from TF32); a step is never shorter than its launches",
        advice=f"{command(mod)}{late}",
    )
