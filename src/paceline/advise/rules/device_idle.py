"""The device is under-used."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, percent
from paceline.advise.rules import input_bound, small_kernels

USED = 0.5  # share of a step that the device works: less is the usual definition of under-use
CAUSES = {
    "input": "the script waits for its loader",
    "peer": "the host waits for other workers",
    "synchronisation": "the host had waited for the device, and restarted",
    "host": "the host is late with its launches",
    "queue": "launched work had not begun",
}
BY_HAND = {
    "peer": "See which worker is late, and what `paceline bandwidth` says about the links",
    "synchronisation": "See the lines that wait: read values only every k-th step",
    "host": "Launch fewer kernels: --mod compile, a larger batch, less Python in the loop",
    "queue": "Use a larger batch: kernels of a few microseconds are mostly start and end",
    "input": "Load ahead: DataLoader(…, num_workers=N, pin_memory=True)",
}


def find(evidence: Evidence) -> Finding | None:
    """The device works less than half of a step. The causes of its idle time are named, the largest one first.

    Fixed by the mod for the largest cause: `resident` or `loader=N` if the script waits for input, `cuda_graphs` if the
    host is late; other causes by hand. Predicted: the prediction of the rule about that cause; without such a rule, the
    largest cause disappears.
    """
    clock, device = evidence.clock, evidence.device
    if clock is None or not device["wall"]:
        return None
    used = clock.device / clock.wall
    if used >= USED:
        return None
    idle = {cause: device[f"idle_{cause}"] for cause in CAUSES}
    largest = max(idle, key=lambda cause: idle[cause])
    # The latency of launches that are late counts as the host's.
    largest = "host" if largest == "queue" and idle["host"] > 0 else largest
    rule = {"input": input_bound.find, "host": small_kernels.find}.get(largest)
    mending = rule(evidence) if rule else None
    gone = clock.wall - (clock.wall - clock.device) * idle[largest] / (sum(idle.values()) or 1.0)
    return Finding(
        rule="device_idle",
        title=f"The device works {percent(used)} of a step; most of the rest {CAUSES[largest]}",
        evidence=[
            Figure("work of the device", clock.device, "s"),
            *(Figure(f"idle, of a traced step: {words}", idle[cause], "s") for cause, words in CAUSES.items()),
            Figure("step", clock.wall, "s"),
        ],
        mod=mending.mod if mending else "",
        predicted_gain=mending.predicted_gain if mending and mending.mod else clock.wall / gone,
        how=mending.how if mending and mending.mod else "the largest cause disappears",
        advice=mending.advice if mending and mending.mod else BY_HAND[largest],
    )
