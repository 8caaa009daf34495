"""GPUs are unused."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, command

LINK = 20e9  # bytes per second between two GPUs if the record does not say: PCIe 4
HIDDEN = 0.5  # share of the gradients' all-reduce that backward hides


def find(evidence: Evidence) -> Finding | None:
    """There are more GPUs than workers, or the script computes on the CPU although there is a GPU.

    Fixed by `workers=N`, which is `-n N`. Predicted: the device's work is split, launching and input stay the same, and
    each step all-reduces the gradients, half of it hidden by backward. If the host sets the step time, more GPUs gain
    nothing until the batch is larger. For a script that computes on the CPU there is no prediction.
    """
    if not evidence.traces:
        return None
    there = max(len(evidence.gpus), *(len(trace.head.devices) for trace in evidence.traces))
    clock = evidence.clock
    if clock is None:
        return _on_the_cpu(evidence, there) if there else None
    used = max(evidence.workers, evidence.device_count)
    if there <= used:
        return None
    mod = f"workers={there}"
    sent = sum(model.bytes for model in evidence.models)
    way = 2 * (there - 1) / there * sent / _link(evidence) * (1 - HIDDEN)
    return Finding(
        rule="unused_devices",
        title=f"{used} of {there} GPUs used",
        evidence=[
            Figure("GPUs available", there),
            Figure("GPUs used", used),
            Figure("work of the device", clock.device, "s"),
            Figure("gradients", sent, "bytes"),
            Figure("step", clock.wall, "s"),
        ],
        mod=mod,
        predicted_gain=clock.gain(device=clock.device * (1 - used / there) - way),
        how="the device's work is split; launching and input stay; half of the gradients' all-reduce is exposed",
        advice=f"{command(mod)} — with --batch scale each GPU keeps the script's batch size",
    )


def _on_the_cpu(evidence: Evidence, there: int) -> Finding:
    return Finding(
        rule="unused_devices",
        title=f"The script computes on the CPU, and there {'is a GPU' if there == 1 else f'are {there} GPUs'}",
        evidence=[Figure("GPUs available", there), Figure("GPUs used", 0), Figure("step", evidence.step, "s")],
        advice='Move the model and the batches to the GPU: .to("cuda")',
    )


def _link(evidence: Evidence) -> float:
    """Bytes per second of the slowest link in the record."""
    links = (evidence.run.topology if evidence.run else {}).get("links") or []
    rates = [link.get("gb_per_s") for link in links if link.get("gb_per_s")]
    return min(rates) * 1e9 if rates else LINK
