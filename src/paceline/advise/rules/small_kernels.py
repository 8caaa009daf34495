"""Kernels are shorter than their launches."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.units import seconds

LATE = 0.1  # share of a step in which the device waits for the host: with less, launches do not set the step time
SMALL = 0.5  # share of the kernels that are shorter than a launch: with fewer, the host is late for another reason
REMAINS = 0.1  # share of launching with graphs: a graph is launched too, and its inputs are copied into place
MOD = "cuda_graphs"


def find(evidence: Evidence) -> Finding | None:
    """The device waits for the host, which launches many small kernels one by one.

    Fixed by `cuda_graphs`, which launches each of forward, backward and the optimizer's step as a whole. Where that
    does not apply, `compile=reduce-overhead` does the same for the model, and `fused_optimizer` or a larger batch
    reduces launches. Predicted: the host's launching inside the three phases takes a tenth of its time.
    """
    clock = evidence.clock
    if clock is None or {"cuda_graphs"} & evidence.mods or not evidence.launches.height:
        return None
    table = evidence.launches.mean().row(0, named=True)
    late = evidence.device["idle_host"] / evidence.device["wall"]
    if late < LATE or table["small"] < SMALL:
        return None
    phases = evidence.phases
    inside = phases["forward"] + phases["backward"] + phases["optimizer"]
    outside = max(phases["other"] - evidence.waited, 0.0)
    saved = clock.launching * (1 - REMAINS) * inside / (inside + outside) if inside else 0.0
    return Finding(
        rule="small_kernels",
        title=f"{table['kernels']:,.0f} kernels per step, half of them below {seconds(table['median'])}: "
        f"the device idles {percent(late)} of a step, waiting for launches",
        evidence=[
            Figure("kernels", table["kernels"], "per step"),
            Figure("median of a kernel", table["median"], "s"),
            Figure("kernels below 10 µs", table["small"]),
            Figure("a launch", table["launch"], "s"),
            Figure("idle: the host was late", evidence.device["idle_host"], "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=MOD,
        predicted_gain=clock.gain(launching=saved),
        how="launching in forward, backward and optimizer takes a tenth; the device's own time stays",
        advice=f"{command(MOD)} — or --mod compile=reduce-overhead, or a larger batch",
    )
