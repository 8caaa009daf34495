"""Looks at this machine: everything that a `Topology` holds.

For people, and for choosing GPUs; placing workers on cores needs `host.discover` only, which is cheaper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.topology import host, networks, processors
from paceline.topology.gpus import driver, read_gpus
from paceline.topology.machine import Gpu, Link, Topology

HERE = "this machine"


def survey(
    *, sys: Path = Path("/sys"), proc: Path = Path("/proc"), dev: Path = Path("/dev"), nvml: Any = None
) -> Topology:
    """This machine. Never raises for what it cannot find out. `nvml` stands in for the driver's library."""
    found = host.discover(sys=sys, proc=proc, dev=dev)
    gpus, links = gpus_and_links(sys=sys, nvml=nvml)
    return Topology(
        host=found.name,
        source=HERE,
        devices=gpus,
        links=links,
        numa=processors.nodes(sys),
        nics=networks.nics(sys, gpus),
        packages=processors.packages(sys, proc),
        caches=processors.caches(sys),
        limits=processors.limits(found, sys, proc),
    )


def gpus_and_links(*, sys: Path = Path("/sys"), nvml: Any = None) -> tuple[tuple[Gpu, ...], tuple[Link, ...]]:
    """The GPU part alone: what choosing needs."""
    if nvml is not None:
        return read_gpus(nvml, sys=sys)
    with driver() as library:
        return ((), ()) if library is None else read_gpus(library, sys=sys)
