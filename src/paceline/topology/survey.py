"""Builds the full `Topology` of this machine.

`paceline topo` and the choice of GPUs use it. Placing workers on cores needs only `host.discover`, which is faster.
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
    """The topology of this machine. Facts that cannot be read are left out; no error is raised. `nvml` replaces the
    driver's library in tests."""
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
    """Only the GPUs and their links, which is all that choosing GPUs needs."""
    if nvml is not None:
        return read_gpus(nvml, sys=sys)
    with driver() as library:
        return ((), ()) if library is None else read_gpus(library, sys=sys)
