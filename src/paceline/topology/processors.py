"""Reads CPU packages, caches, NUMA nodes and cgroup limits from sysfs and procfs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from paceline.topology.host import Host, control_groups, format_list, parse_list, read
from paceline.topology.machine import CgroupLimits, CpuCache, NumaNode, Package
from paceline.units import parse_size

_NO_LIMIT = 2**60  # bytes: cgroup v1 writes a number near 2**63 for "no limit"


def nodes(sys: Path) -> tuple[NumaNode, ...]:
    """The NUMA nodes, with the memory of each."""
    found = []
    for folder in (sys / "devices/system/node").glob("node[0-9]*"):
        memory = re.search(r"MemTotal:\s*(\d+) kB", read(folder / "meminfo"))
        found.append(
            NumaNode(
                id=int(folder.name.removeprefix("node")),
                cpus=read(folder / "cpulist").strip(),
                memory=int(memory[1]) * 1024 if memory else None,
                distances=tuple(int(each) for each in read(folder / "distance").split() if each.isdigit()),
            )
        )
    return tuple(sorted(found, key=lambda node: node.id))


def packages(sys: Path, proc: Path) -> tuple[Package, ...]:
    """All CPU packages (sockets), also those that this process may not use."""
    model = _model(read(proc / "cpuinfo"))
    members: dict[int, list[int]] = {}
    cores: dict[int, set[str]] = {}
    for cpu, folder in _cpus(sys):
        # A machine that reports no package ids counts as one package.
        text = read(folder / "topology/physical_package_id").strip()
        package = int(text) if text.isdigit() else 0
        members.setdefault(package, []).append(cpu)
        cores.setdefault(package, set()).add(read(folder / "topology/core_id").strip() or str(cpu))
    return tuple(
        Package(id=package, model=model, cores=len(cores[package]), cpus=format_list(members[package]))
        for package in sorted(members)
    )


def caches(sys: Path) -> tuple[CpuCache, ...]:
    """Every cache once, grouped by level, kind and size; the caches nearest to the core first."""
    found: dict[tuple[int, str, int], set[str]] = {}
    for _, folder in _cpus(sys):
        for cache in (folder / "cache").glob("index[0-9]*"):
            level, size = read(cache / "level").strip(), parse_size(read(cache / "size")) or 0
            shared = read(cache / "shared_cpu_list").strip()
            if level.isdigit() and size:
                kind = read(cache / "type").strip().lower()
                found.setdefault((int(level), kind, size), set()).add(shared)
    return tuple(
        CpuCache(level=level, kind=kind, size=size, cpus=tuple(sorted(shared, key=_first)))
        for (level, kind, size), shared in sorted(found.items())
    )


def limits(host: Host, sys: Path, proc: Path) -> CgroupLimits:
    """The CPUs and the memory that this process may use."""
    granted = []
    for folder in control_groups("memory", sys=sys, proc=proc):
        text = (read(folder / "memory.max") or read(folder / "memory.limit_in_bytes")).strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            granted.append(int(text))
    return CgroupLimits(
        cpus=format_list(core.id for core in host.cores), quota=host.quota, memory=min(granted, default=None)
    )


def _cpus(sys: Path) -> Iterator[tuple[int, Path]]:
    folder = sys / "devices/system/cpu"
    for cpu in parse_list(read(folder / "online")):
        yield cpu, folder / f"cpu{cpu}"


def _model(cpuinfo: str) -> str:
    """The model name. Arm kernels report only numbers: then the part number is used."""
    if named := re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return " ".join(named[1].split())
    part = re.search(r"^CPU part\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
    return f"Arm, part {part[1]}" if part else ""


def _first(cpus: str) -> int:
    return next(iter(parse_list(cpus)), 0)
