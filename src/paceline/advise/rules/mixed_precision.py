"""Mixed precision is off."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding
from paceline.advise.matmul_cost import products, tensor_cores_for
from paceline.advise.wording import command, percent

SHARE = 0.1  # of the device's compute in float32 products: with less, no precision makes a step visibly shorter
CASTS = 0.1  # of launching that autocast adds: it casts weights and inputs, each by a kernel of its own


def find(evidence: Evidence) -> Finding | None:
    """Products of matrices are computed in float32, though the device has tensor cores.

    Mended by `precision=bf16` (`fp16` before Ampere). Predicted: the device's time in those products, six times as fast
    from ordinary cores and 1.7 times from TF32; the host launches a tenth more, for the casts. Where the host decides
    how long a step is, that gains little until its launches are mended.
    """
    found, clock = products(evidence), evidence.clock
    half, bfloat = tensor_cores_for(evidence)
    if found is None or clock is None or not half or "precision" in evidence.mods or found.share < SHARE:
        return None
    mod = "precision=bf16" if bfloat else "precision=fp16"
    late = " By itself it gains little: the device waits for the host." if clock.host_decides else ""
    return Finding(
        rule="mixed_precision",
        title=f"{percent(found.share)} of the device's compute is products in float32",
        evidence=[
            Figure("products in float32 on ordinary cores", found.plain, "s"),
            Figure("products in float32 on tensor cores (TF32)", found.rounded, "s"),
            Figure("compute of the device", found.compute, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=clock.gain(device=found.saved_by_half(), launching=-CASTS * clock.launching),
        how="the time of these products, 6 × as fast (1.7 × from TF32); a step is never shorter than its launches",
        advice=f"{command(mod)}{late}",
    )
