"""Convolutions run in channels-first layout."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.advise.matmul_cost import conversion_time, convolution_time, time_of

SHARE = 0.2  # share of the device's compute in convolutions: with less, the rest of the model loses their gain
FASTER = 1.1  # speed-up, besides the conversions saved: kernels for tensor cores need channels last
# On a CPU, convolutions themselves are no faster (oneDNN has layouts of its own), but the layers between them are:
# pooling and norms process all channels of a pixel at once.
POOLS = 6.0  # speed-up on a CPU: 6 to 8 was measured
NORMS = 2.0  # speed-up on a CPU: 1.6 to 2.8 was measured
CONVOLUTIONS_ON_CPU = 0.87  # speed-up: measured with channels last
WORTH = 1.05  # a smaller gain on a CPU is not reported
POOLING = r"^aten::max_pool2d_with_indices$"
NORMING = r"^aten::native_batch_norm"
MOD = "channels_last"


def find(evidence: Evidence) -> Finding | None:
    """Images and convolution weights are in channels-first layout, while kernels for tensor cores, and pooling and
    norms on a CPU, are faster with channels last.

    Fixed by `channels_last`. Predicted on a device: cuDNN's layout conversions are saved, and convolutions are a tenth
    faster. On a CPU: max-pooling is six times and batch norm twice as fast, convolutions a little slower.
    """
    models = [model for model in evidence.models if model.convolutions]
    if not models or any(model.channels_last for model in models) or "channels_last" in evidence.mods:
        return None
    return _on_device(evidence) if evidence.clock is not None else _on_cpu(evidence)


def _on_device(evidence: Evidence) -> Finding | None:
    clock, time, compute = evidence.clock, convolution_time(evidence), evidence.device["compute"]
    if clock is None or not compute or time < SHARE * compute:
        return None
    turning = conversion_time(evidence)
    return Finding(
        rule="channels_last",
        title=f"{percent(time / compute)} of the compute is convolutions in channels-first layout",
        evidence=[
            Figure("convolutions in the model", sum(model.convolutions for model in evidence.models)),
            Figure("time in convolutions", time, "s"),
            Figure("of that, layout conversions", turning, "s"),
            Figure("compute of the device", compute, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=MOD,
        predicted_gain=clock.gain(device=turning + (time - min(turning, time)) * (1 - 1 / FASTER)),
        how="no layout conversions, and convolutions are a tenth faster",
        advice=ADVICE,
    )


def _on_cpu(evidence: Evidence) -> Finding | None:
    wall = evidence.phases.get("wall", 0.0)
    time, pools, norms = convolution_time(evidence), time_of(evidence, POOLING), time_of(evidence, NORMING)
    saved = pools * (1 - 1 / POOLS) + norms * (1 - 1 / NORMS) + time * (1 - 1 / CONVOLUTIONS_ON_CPU)
    if not wall or wall / (wall - saved) < WORTH:
        return None
    return Finding(
        rule="channels_last",
        title=f"{percent((pools + norms) / wall)} of a step is pooling and batch norm in channels-first layout",
        evidence=[
            Figure("time in max-pooling", pools, "s"),
            Figure("time in batch norm", norms, "s"),
            Figure("time in convolutions", time, "s"),
            Figure("traced step", wall, "s"),
        ],
        mod=MOD,
        predicted_gain=wall / (wall - saved),
        how="max-pooling takes a sixth, batch norm half; convolutions 15 % more",
        advice=ADVICE,
    )


ADVICE = f"{command(MOD)} — by hand: model.to(memory_format=torch.channels_last), and the same for the images"
