"""Chooses the best-connected GPUs for a run with fewer workers than GPUs, and says why.

The launcher calls it before workers start. There is no overhead on a host without GPUs, or for a run that takes one GPU
or all of them: the driver's library is not imported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import msgspec

from paceline.errors import UsageError
from paceline.topology import Host
from paceline.topology.choosing import DeviceChoice, choose
from paceline.topology.machine import Gpu, Link, Topology


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A host whose GPUs are in the order of the ranks that get them, followed by the unused GPUs."""

    host: Host
    near: tuple[int | None, ...]  # the NUMA node of each worker's GPU
    notice: str
    recorded: dict[str, Any]  # for run.json


@functools.cache
def look() -> Topology:
    """The GPUs of this machine and their links. Cached per process, because a sweep launches many runs."""
    from paceline.topology.survey import gpus_and_links

    gpus, links = gpus_and_links()
    return Topology(devices=gpus, links=links)


def choose_gpus(workers: int, host: Host, *, look: Callable[[], Topology] = look) -> Placed | None:
    """The best GPUs for this number of workers, among those in CUDA_VISIBLE_DEVICES. None if there is no choice, or if
    the topology is unknown."""
    if not 1 < workers < len(host.gpus):
        return None
    topology = look()
    names = _names(host.gpus, topology.devices)
    models = {gpu.name for gpu in topology.devices}
    # CUDA numbers GPUs of different models by speed, the driver numbers them by bus: the numbers do not match.
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
    """Each GPU's name in CUDA_VISIBLE_DEVICES, by index: a number, or the beginning of the GPU's UUID."""
    found: dict[int, str] = {}
    for name in visible:
        fits = [gpu for gpu in gpus if (str(gpu.index) == name if name.isdigit() else gpu.uuid.startswith(name))]
        if len(fits) != 1 or fits[0].index in found:
            return None
        found[fits[0].index] = name
    return found


def _recorded(choice: DeviceChoice, links: list[Link]) -> dict[str, Any]:
    return {"choice": msgspec.to_builtins(choice), "links": msgspec.to_builtins(links)}
