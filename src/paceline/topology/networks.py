"""Reads network devices from sysfs: InfiniBand and RoCE first, as nvidia-smi numbers them, then plain interfaces."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from paceline.topology import pci
from paceline.topology.host import read
from paceline.topology.machine import Gpu, Nic
from paceline.topology.machine import Path as Way

_ETHERNET = "1"  # ARPHRD_ETHER


def nics(sys: Path, gpus: tuple[Gpu, ...]) -> tuple[Nic, ...]:
    """All NICs, with the PCI path to each GPU and to each other NIC, if both are PCI devices."""
    found = _rdma(sys)
    taken = {interface for nic in found for interface in nic.interfaces}
    found += [nic for nic in _interfaces(sys) if nic.name not in taken]
    found = [msgspec.structs.replace(nic, label=f"NIC{number}") for number, nic in enumerate(found)]
    places = [(f"GPU{gpu.index}", gpu.bus) for gpu in gpus] + [(nic.label, nic.bus) for nic in found]
    return tuple(msgspec.structs.replace(nic, paths=_paths(nic, places, sys)) for nic in found)


def _paths(nic: Nic, places: list[tuple[str, str]], sys: Path) -> tuple[Way, ...]:
    ways = []
    for label, bus in places:
        if label != nic.label and nic.bus and bus:
            # Ports of one card may share a bus address.
            kind = "PIX" if bus == nic.bus else pci.kind_between(nic.bus, bus, sys=sys)
            if kind is not None:
                ways.append(Way(to=label, kind=kind))
    return tuple(ways)


def _rdma(sys: Path) -> list[Nic]:
    found = []
    for folder in sorted((sys / "class/infiniband").glob("*"), key=_natural):
        ports = sorted((folder / "ports").glob("[0-9]*"), key=_natural)
        rates = [float(rate[1]) for port in ports if (rate := re.match(r"([\d.]+) Gb/sec", read(port / "rate")))]
        layer = read(ports[0] / "link_layer").strip().lower() if ports else ""
        device = folder / "device"
        found.append(
            Nic(
                label="",
                name=folder.name,
                kind=layer or "infiniband",
                gbit_per_s=max(rates, default=None),
                up=any("ACTIVE" in read(port / "state") for port in ports),
                bus=_bus(device),
                node=_node(device, sys),
                interfaces=tuple(sorted(each.name for each in (device / "net").glob("*"))),
            )
        )
    return found


def _interfaces(sys: Path) -> list[Nic]:
    """The network cards, without bridges, bonds and other virtual interfaces. A container sees no card: there the
    active virtual interfaces count."""
    everything = sorted((sys / "class/net").glob("*"), key=_natural)
    cards = [folder for folder in everything if (folder / "device").exists()]
    virtual = [folder for folder in everything if folder not in cards and read(folder / "type").strip() == _ETHERNET]
    chosen = cards or [folder for folder in virtual if read(folder / "operstate").strip() == "up"]
    found = []
    for folder in chosen:
        speed = read(folder / "speed").strip()
        device = folder / "device"
        found.append(
            Nic(
                label="",
                name=folder.name,
                kind="ethernet" if folder in cards else "virtual",
                gbit_per_s=int(speed) / 1000 if speed.isdigit() and int(speed) > 0 else None,
                up=read(folder / "operstate").strip() == "up",
                bus=_bus(device),
                node=_node(device, sys),
            )
        )
    return found


def _bus(device: Path) -> str:
    """The PCI address of the card. In a virtual machine the PCI device is a parent of the network device."""
    for place in (device.resolve(), *device.resolve().parents) if device.exists() else ():
        if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", place.name):
            return place.name
    return ""


def _node(device: Path, sys: Path) -> int | None:
    text = read(device / "numa_node").strip()
    if text.isdigit():
        return int(text)
    bus = _bus(device)
    return pci.node_of(bus, sys=sys) if bus else None


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
