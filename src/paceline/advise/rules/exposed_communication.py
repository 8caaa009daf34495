"""Communication is exposed."""

from __future__ import annotations

from typing import Any

import polars as pl

from paceline.advise.evidence import Evidence, number
from paceline.advise.finding import Figure, Finding, command, percent
from paceline.units import size

SHARE = 0.1  # share of a step: the usual limit for exposed communication
MOD = "batch=x2"


def find(evidence: Evidence) -> Finding | None:
    """Workers wait for communication that no compute hides. (Waiting for a late worker is another finding.)

    Fixed by `batch=x2`: twice the compute for the same gradients. Between hosts `--compression bf16` halves the bytes;
    on a host with NVLink between some GPUs, `paceline topo` says which GPUs to use. The bucket size is tuned
    automatically in the first steps. Predicted: with twice the samples per step, everything but communication doubles.
    """
    if evidence.workers < 2 or not evidence.step:
        return None
    step = evidence.step
    waiting = min(waiting_for_bytes(evidence), step)  # a mean over steps, some of which are longer than the step time
    if waiting < SHARE * step:
        return None
    hosts = len({worker.host for worker in evidence.run.workers}) if evidence.run else 1
    missed = _missed_nvlink(evidence)
    advice = [command(MOD)]
    if hosts > 1 and (evidence.run and evidence.run.settings.get("compression", "none") == "none"):
        advice.append("--compression bf16 halves the bytes between hosts")
    if missed:
        advice.append(f"{missed}: paceline topo says which GPUs to use")
    advice.append("paceline bandwidth measures the links")
    sent = sum(model.bytes for model in evidence.models)
    return Finding(
        rule="exposed_communication",
        title=f"{percent(waiting / step)} of a step is communication that no compute hides",
        evidence=[
            Figure("waiting for bytes", waiting, "s"),
            Figure("workers", evidence.workers),
            Figure("hosts", hosts),
            Figure("gradients", sent, "bytes"),
            *([Figure("hidden under compute", hidden)] if (hidden := _hidden(evidence)) is not None else []),
            Figure("step", step, "s"),
        ],
        mod="" if "batch" in evidence.mods else MOD,
        predicted_gain=None if "batch" in evidence.mods else 2 * step / (2 * step - waiting),
        how="a step of twice the samples: everything but communication doubles",
        advice=f"{' — '.join(advice)} ({size(sent)} of gradients per step)" if sent else " — ".join(advice),
    )


def waiting_for_bytes(evidence: Evidence) -> float:
    """Seconds per step. From the step record: the wait of the worker that came last to the collectives, and so waited
    for no other worker. From a trace written elsewhere: communication kernels without concurrent compute."""
    steps = evidence.settled.filter("split") if evidence.settled.height else evidence.settled
    if steps.height:
        least = steps.group_by("step").agg(pl.col("communication").min())
        return number(least["communication"].mean())
    return evidence.device.get("communication", 0.0) + evidence.device.get("idle_peer", 0.0)


def _hidden(evidence: Evidence) -> float | None:
    """The fraction of communication that ran during compute, if kernels show it."""
    device = evidence.device
    if not device or not device["communication_total"]:
        return None
    return 1 - device["communication"] / device["communication_total"]


def _missed_nvlink(evidence: Evidence) -> str:
    """A text if the workers' GPUs have slower links than other GPUs of the machine; else empty."""
    links: list[dict[str, Any]] = (evidence.run.topology if evidence.run else {}).get("links") or []
    if evidence.run is None or not any(str(link.get("kind", "")).startswith("NV") for link in links):
        return ""
    used = {worker.gpus[0] for worker in evidence.run.workers if worker.gpus}
    slow = [
        link
        for link in links
        if {str(link.get("a")), str(link.get("b"))} <= used and not str(link.get("kind", "")).startswith("NV")
    ]
    return f"GPUs {slow[0]['a']} and {slow[0]['b']} have no NVLink, others have" if slow else ""
