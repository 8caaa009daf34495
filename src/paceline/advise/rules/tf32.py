"""TF32 is off."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.advise.matmul_cost import products, tensor_cores_for

SHARE = 0.1  # share of the device's compute: with less, a step becomes hardly shorter
MOD = "tf32"


def find(evidence: Evidence) -> Finding | None:
    """Products of float32 matrices run on ordinary cores, although tensor cores could compute them in TF32.

    Fixed by `tf32`. Predicted: those products run four times as fast. The mod is milder than mixed precision: inputs of
    a product keep 10 bits of mantissa, everything else stays float32.
    """
    found, clock = products(evidence), evidence.clock
    if found is None or clock is None or {"tf32", "precision"} & evidence.mods:
        return None
    if not tensor_cores_for(evidence)[1] or found.plain_share < SHARE:
        return None
    return Finding(
        rule="tf32",
        title=f"{percent(found.plain_share)} of the device's compute is float32 products on ordinary cores",
        evidence=[
            Figure("products in float32 on ordinary cores", found.plain, "s"),
            Figure("compute of the device", found.compute, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=MOD,
        predicted_gain=clock.gain(device=found.saved_by_tf32()),
        how="these products run 4 × as fast; a step is never shorter than its launches",
        advice=f'{command(MOD)} — by hand: torch.set_float32_matmul_precision("high")',
    )
