"""GPUs communicate through Gloo."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, percent
from paceline.advise.rules.exposed_communication import waiting_for_bytes

FASTER = 8.0  # speed-up: Gloo copies through the host, at a few GB/s at best


def find(evidence: Evidence) -> Finding | None:
    """Several workers compute on GPUs and communicate through Gloo, which copies everything through the host.

    Fixed by NCCL: `--backend auto` (or `nccl`), or `init_process_group("nccl")` in a script that makes its own group.
    Predicted: the wait in collectives takes an eighth.
    """
    facts = evidence.first_facts
    told = {str(trace.head.distributed.get("backend", "")) for trace in evidence.traces}
    told |= {facts.backend} if facts else set()
    if not evidence.has_device or evidence.workers < 2 or "gloo" not in told:
        return None
    waiting, step = waiting_for_bytes(evidence), evidence.step
    return Finding(
        rule="gloo_on_gpus",
        title=f"Gloo on GPUs: {percent(waiting / step if step else 0.0)} of a step is waiting in collectives",
        evidence=[
            Figure("workers", evidence.workers),
            Figure("waiting in collectives", waiting, "s"),
            Figure("step", step, "s"),
        ],
        predicted_gain=step / (step - waiting * (1 - 1 / FASTER)) if step else None,
        how="the wait in collectives takes an eighth",
        advice='paceline run --backend nccl … — in a script with its own group: init_process_group("nccl")',
    )
