"""Convolutions over pictures whose channels come first."""

from __future__ import annotations

from paceline.advise.convolutions import conversion_time, convolution_time
from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import command, percent

SHARE = 0.2  # of compute in convolutions: with less, the rest of the model loses what they gain
ON_DEVICE = 1.1  # times as fast, beside the conversions that go: the kernels for tensor cores want channels last
ON_CPU = 1.15  # times as fast a step's convolutions on a CPU
MOD = "channels_last"


def find(evidence: Evidence) -> Finding | None:
    """Convolutions are a large part of the compute, and pictures and weights lie with the channel first, while the
    kernels for tensor cores (and most for CPUs) want it last.

    Mended by `channels_last`. Predicted: what cuDNN spends on turning pictures round goes, and convolutions are a tenth
    faster (on a CPU, 15 %).
    """
    models = [model for model in evidence.models if model.convolutions]
    if not models or any(model.channels_last for model in models) or "channels_last" in evidence.mods:
        return None
    time, clock = convolution_time(evidence), evidence.clock
    whole = evidence.device["compute"] if clock is not None else evidence.phases.get("wall", 0.0)
    if not whole or time < SHARE * whole:
        return None
    turning = conversion_time(evidence)
    if clock is not None:
        gain = clock.gain(device=turning + (time - min(turning, time)) * (1 - 1 / ON_DEVICE))
    else:
        gain = 1 / (1 - time / whole * (1 - 1 / ON_CPU))
    return Finding(
        rule="channels_last",
        title=f"{percent(time / whole)} of the compute is convolutions with the channel first",
        evidence=[
            Figure("convolutions in the model", sum(model.convolutions for model in models)),
            Figure("time in convolutions", time, "s"),
            Figure("of that, turning pictures round", turning, "s"),
            Figure("compute" if clock else "traced step", whole, "s"),
        ],
        mod=MOD,
        predicted_gain=gain,
        how="nothing is turned round, and convolutions are a tenth faster (15 % on a CPU)",
        advice=f"{command(MOD)} — by hand: model.to(memory_format=torch.channels_last), and the pictures",
    )
