"""Measures a script for a plan, in one short series on this machine: compute by rows, gradients, small exchanges.

Every trial uses the same number of threads. One worker computes the script's batch and a quarter of it; two workers,
with a timeline, compute half of it each, and show when gradients are ready and how often the workers meet.
"""

from __future__ import annotations

from paceline.settings import RunSettings
from paceline.topology import Host
from paceline.trials.core.bench import Bench, Measured

LEAST = 4  # rows of the smallest batch


def threads(settings: RunSettings, host: Host) -> int | None:
    """Threads of each worker: as many as two workers can have; on GPUs as set."""
    return settings.threads or (None if host.gpus else max(1, host.usable_cores // 2))


def measure(bench: Bench, host: Host) -> list[Measured]:
    """The trials. A failure of the first one ends the series; one GPU has no second worker."""
    found = [bench.measure("workers1", workers=1, facts=True)]
    if not found[0].ok:
        return found
    if found[0].batch // 4 >= LEAST:
        mods = (*bench.settings.mods, f"batch={found[0].batch // 4}:none")
        found.append(bench.measure("workers1-quarter", workers=1, mods=mods))
    if len(host.gpus) != 1:
        found.append(bench.measure("workers2", workers=2, facts=True, timeline=True, noise_scale=True))
    return found
