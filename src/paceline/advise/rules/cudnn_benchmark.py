"""cuDNN's benchmark mode is off."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.advise.matmul_cost import convolution_shapes, convolution_time

SHARE = 0.2  # share of the device's compute: with less, a better algorithm makes no visible difference
FASTER = 1.1  # speed-up: the best algorithm compared with cuDNN's heuristic choice
SHAPES = 60  # different convolution shapes: with more, shapes change from step to step, and each new one is benchmarked
MOD = "cudnn_benchmark"


def find(evidence: Evidence) -> Finding | None:
    """Convolutions of a few shapes are a large part of the compute, and `torch.backends.cudnn.benchmark` is off: cuDNN
    chooses algorithms by a heuristic.

    Fixed by `cudnn_benchmark`. Predicted: convolutions are a tenth faster.
    """
    facts, clock = evidence.first_facts, evidence.clock
    if facts is None or clock is None or facts.cudnn_benchmark or facts.deterministic:
        return None
    time, compute = convolution_time(evidence), evidence.device["compute"]
    shapes = convolution_shapes(evidence)
    if not compute or time < SHARE * compute or shapes > SHAPES:
        return None
    return Finding(
        rule="cudnn_benchmark",
        title=f"{percent(time / compute)} of the device's compute is convolutions, with algorithms chosen by heuristic",
        evidence=[
            Figure("time in convolutions", time, "s"),
            Figure("compute of the device", compute, "s"),
            Figure("shapes", shapes),
            Figure("step", clock.wall, "s"),
        ],
        mod=MOD,
        predicted_gain=clock.gain(device=time * (1 - 1 / FASTER)),
        how="convolutions are a tenth faster; a step is never shorter than its launches",
        advice=f"{command(MOD)} — by hand: torch.backends.cudnn.benchmark = True",
    )
