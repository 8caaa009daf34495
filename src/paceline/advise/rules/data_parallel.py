"""DataParallel is used."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command

MARK = r"^DataParallel\.forward$"  # torch's own mark around every such call; DistributedDataParallel has another one


def find(evidence: Evidence) -> Finding | None:
    """`torch.nn.DataParallel` drives several GPUs from one process: it copies the weights to all GPUs in every step,
    and one Python process launches the kernels of all GPUs.

    Fixed by `workers=N`, one process per GPU, with the script written for one GPU. Predicted: each process launches for
    one GPU, at the same time as the other processes.
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
            Figure("calls of DataParallel", calls, "per step"),
            Figure("GPUs used", devices),
            Figure("launching", clock.launching, "s"),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=clock.gain(launching=clock.launching * (1 - 1 / devices)),
        how="each process launches for one GPU only, all at the same time",
        advice=f"Remove DataParallel from the script, and type: {command(mod)}",
    )
