"""Which of a host's GPUs a run with fewer workers than GPUs gets: the best joined ones, and a line that says why.

Called by the launcher before workers start. A host without GPUs, and a run that takes them all or only one, pay
nothing: the driver's library is not even imported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import msgspec

from paceline.errors import UsageError
from paceline.topology import Host
from paceline.topology.choosing import Choice, choose
from paceline.topology.machine import Gpu, Link, Topology


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A host whose GPUs are in the order of the ranks that get them, the rest behind."""

    host: Host
    near: tuple[int | None, ...]  # the NUMA node of each worker's GPU
    notice: str
    recorded: dict[str, Any]  # for run.json


@functools.cache
def look() -> Topology:
    """The GPUs of this machine and their links. Once a process: a sweep launches many runs."""
    from paceline.topology.survey import gpus_and_links

    gpus, links = gpus_and_links()
    return Topology(devices=gpus, links=links)


def choose_gpus(workers: int, host: Host, *, look: Callable[[], Topology] = look) -> Placed | None:
    """The best GPUs for so many workers, among those that CUDA_VISIBLE_DEVICES leaves; None where there is
    nothing to choose, or nothing known to choose by."""
    if not 1 < workers < len(host.gpus):
        return None
    topology = look()
    names = _names(host.gpus, topology.devices)
    models = {gpu.name for gpu in topology.devices}
    # CUDA numbers GPUs of different models by speed, the driver by bus: their numbers cannot be compared.
    if names is None or len(models) > 1:
        return None
    try:
        choice = choose(topology, workers, among=tuple(names))
    except UsageError:
        return None
    chosen = [names[index] for index in choice.devices]
    nodes = {gpu.index: gpu.node for gpu in topology.devices}
    return Placed(
        host=dataclasses.replace(host, gpus=(*chosen, *(name for name in host.gpus if name not in chosen))),
        near=tuple(nodes[index] for index in choice.devices),
        notice=f"{workers} workers on GPUs {', '.join(chosen)}, chosen from {len(host.gpus)}: {choice.why}",
        recorded=_recorded(choice, [link for link in topology.links if {link.a, link.b} <= names.keys()]),
    )


def _names(visible: tuple[str, ...], gpus: tuple[Gpu, ...]) -> dict[int, str] | None:
    """By index, what CUDA_VISIBLE_DEVICES calls each GPU: a number, or the beginning of its identifier."""
    found: dict[int, str] = {}
    for name in visible:
        fits = [gpu for gpu in gpus if (str(gpu.index) == name if name.isdigit() else gpu.uuid.startswith(name))]
        if len(fits) != 1 or fits[0].index in found:
            return None
        found[fits[0].index] = name
    return found


def _recorded(choice: Choice, links: list[Link]) -> dict[str, Any]:
    return {"choice": msgspec.to_builtins(choice), "links": msgspec.to_builtins(links)}
