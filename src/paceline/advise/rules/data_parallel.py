"""DataParallel is used."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding
from paceline.advise.wording import command

MARK = r"^DataParallel\.forward$"  # torch's own, round every such call; DistributedDataParallel says otherwise


def find(evidence: Evidence) -> Finding | None:
    """`torch.nn.DataParallel` drives several GPUs from one process: every step it copies the weights to all, and one
    Python launches for all.

    Mended by `workers=N`, a process a GPU, with the script written for one. Predicted: each process launches for one
    GPU, and does so at the same time as the others.
    """
    clock, devices = evidence.clock, evidence.device_count
    calls = evidence.marked(MARK) if evidence.traces else 0.0
    if clock is None or not calls or devices < 2:
        return None
    mod = f"workers={devices}"
    return Finding(
        rule="data_parallel",
        title=f"DataParallel: one process launches for {devices} GPUs",
        evidence=[
            Figure("calls of DataParallel", calls, "a step"),
            Figure("GPUs used", devices),
            Figure("launching", clock.launching, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=clock.gain(launching=clock.launching * (1 - 1 / devices)),
        how="each process launches for one GPU only, all at the same time",
        advice=f"Take DataParallel out of the script, and type: {command(mod)}",
    )
