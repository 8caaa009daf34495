"""The optimizer's step is not fused."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command, percent

SHARE = 0.05  # share of a step: with less there is little to gain
FUSED = 2.5  # speed-up on a device: measured for AdamW over the tensors of a ResNet-50 and of a GPT
# Times as fast on a CPU: one pass over memory instead of several. Plain SGD already takes one pass.
FUSED_ON_CPU = {"Adam": 4.5, "AdamW": 4.5, "SGD": 2.7, "Adagrad": 2.7}
LAUNCHED = 0.8  # share of the optimizer's launches that is saved
KNOWN = ("Adam", "AdamW", "SGD", "Adagrad")  # optimizers with a fused kernel in torch
KERNELS = r"_foreach_|addcdiv|addcmul|lerp_|^Optimizer"
MOD = "fused_optimizer"
ON_CPU = "one pass over memory: 4.5 × as fast for Adam, 2.7 × for SGD with momentum"
ON_DEVICE = "the optimizer's kernels take two fifths of their time, and a fifth of its launches remain"


def find(evidence: Evidence) -> Finding | None:
    """The optimizer's step takes a visible part of the time, and torch has a fused kernel for it.

    Fixed by `fused_optimizer`. Predicted: on a device its kernels run 2.5 times as fast, and four fifths of its
    launches are saved; on a CPU Adam is 4.5 times as fast, SGD with momentum 2.7 times.
    """
    facts = evidence.first_facts
    known = [one for one in facts.optimizers if one.name in KNOWN and one.momentum and not one.fused] if facts else []
    if not known or {"fused_optimizer", "cuda_graphs"} & evidence.mods or not evidence.step:
        return None
    taken = evidence.parts["optimizer"]
    if taken < SHARE * evidence.step:
        return None
    return Finding(
        rule="optimizer_step",
        title=f"{percent(taken / evidence.step)} of a step is the optimizer, {known[0].name}, tensor by tensor",
        evidence=[
            Figure("optimizer's step", taken, "s"),
            Figure("tensors", sum(one.tensors for one in known)),
            Figure("step", evidence.step, "s"),
        ],
        mod=MOD,
        predicted_gain=_gain(evidence, taken, known[0].name),
        how=ON_CPU if evidence.clock is None else ON_DEVICE,
        advice=f"{command(MOD)} — by hand: torch.optim.{known[0].name}(…, fused=True)",
    )


def _gain(evidence: Evidence, taken: float, name: str) -> float:
    clock = evidence.clock
    if clock is None:
        return evidence.step / (evidence.step - taken * (1 - 1 / FUSED_ON_CPU[name]))
    kernels = evidence.kernels_by_op.filter(pl.col("op").str.contains(KERNELS))
    phases = evidence.phases
    own = phases["wall"] - evidence.waited - phases["data"]
    launching = clock.launching * LAUNCHED * phases["optimizer"] / own if own > 0 else 0.0
    return clock.gain(device=float(kernels["total"].sum()) * (1 - 1 / FUSED), launching=min(launching, clock.launching))
