"""Reads the position of devices in the PCI tree from sysfs, and the kind of path between two devices."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.topology.host import read


def bus_name(text: str) -> str:
    """A PCI address in the form 0000:07:00.0. The driver writes 00000000:07:00.0, NCCL's log 7000."""
    text = text.strip().lower()
    if found := re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-9a-f]))?", text):
        domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
        return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
    if re.fullmatch(r"[0-9a-f]{2,9}", text):
        packed = int(text, 16)
        return f"{packed >> 20:04x}:{packed >> 12 & 0xFF:02x}:{packed >> 4 & 0xFF:02x}.{packed & 0xF:x}"
    return text


def node_of(bus: str, *, sys: Path) -> int | None:
    """The NUMA node of a device. The kernel writes -1 if the machine has only one node, or if the node is unknown."""
    text = read(sys / "bus/pci/devices" / bus / "numa_node").strip()
    if text == "-1" and len(list((sys / "devices/system/node").glob("node[0-9]*"))) == 1:
        return 0
    return int(text) if text.isdigit() else None


def cpus_of(bus: str, *, sys: Path) -> str:
    """The CPUs local to a device, as a kernel list."""
    return read(sys / "bus/pci/devices" / bus / "local_cpulist").strip()


def kind_between(a: str, b: str, *, sys: Path) -> str | None:
    """PIX, PXB, PHB, NODE or SYS, by the positions of two devices in the PCI tree; None if a position is unknown."""
    path_a, path_b = _path(a, sys=sys), _path(b, sys=sys)
    if not path_a or not path_b:
        return None
    if path_a[0] != path_b[0]:
        node_a, node_b = node_of(a, sys=sys), node_of(b, sys=sys)
        return "NODE" if node_a is not None and node_a == node_b else "SYS"
    shared = 0
    for step_a, step_b in zip(path_a, path_b, strict=False):
        if step_a != step_b:
            break
        shared += 1
    if shared == 1:
        # Only the host bridge is shared. Two functions of one card are still the closest kind.
        same_card = len(path_a) == len(path_b) == 2 and a.rpartition(".")[0] == b.rpartition(".")[0]
        return "PIX" if same_card else "PHB"
    # Below the shared part, a path through one switch has at most a switch port and the device itself.
    return "PIX" if max(len(path_a), len(path_b)) - shared <= 2 else "PXB"


def _path(bus: str, *, sys: Path) -> list[str]:
    """The path from the host bridge down to the device: pci0000:00, 0000:00:01.0, …"""
    link = sys / "bus/pci/devices" / bus
    if not link.exists():
        return []
    parts = link.resolve().parts
    roots = [place for place, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]+:[0-9a-f]+", part)]
    return list(parts[roots[-1] :]) if roots else []
