"""Compares the transports that NCCL uses, by its log, with the links of the machine.

Flags each pair of GPUs that has NVLinks but communicates over something else, and names the variable that disables the
NVLinks, if the log shows it.
"""

from __future__ import annotations

import msgspec

from paceline.topology import links as kinds
from paceline.topology.machine import Topology
from paceline.topology.nccl_log import NcclLog, Rank, Transport

_LEVELS = ("0", "LOC")  # values of NCCL_P2P_LEVEL that disable even NVLinks


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of GPUs, a < b, and the slower transport of its two directions."""

    a: int
    b: int
    transport: Transport
    detail: str
    channels: int


class UnusedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of GPUs whose NVLinks are not used. `variable` is the setting that disables the NVLinks, if the log shows
    it."""

    a: int
    b: int
    kind: str
    transport: Transport
    variable: str
    message: str
    advice: str


_SLOWEST_LAST: tuple[Transport, ...] = ("P2P", "SHM", "NET", "other")


def uses(log: NcclLog, topology: Topology | None = None) -> tuple[Use, ...]:
    """The pairs of GPUs in the log that are on one host. Ranks whose GPU is unknown, and pairs across hosts, are left
    out."""
    gpus = gpus_of(log, topology)
    hosts = {rank.rank: "" if log.hosts == 1 else rank.host for rank in log.ranks}
    found: dict[tuple[int, int], Use] = {}
    for route in log.routes:
        if route.source not in gpus or route.target not in gpus or hosts[route.source] != hosts[route.target]:
            continue
        a, b = sorted((gpus[route.source], gpus[route.target]))
        if a == b:
            continue
        use = Use(a=a, b=b, transport=route.transport, detail=route.detail, channels=len(route.channels))
        before = found.get((a, b))
        if before is None or _SLOWEST_LAST.index(use.transport) > _SLOWEST_LAST.index(before.transport):
            found[a, b] = use
    return tuple(found[pair] for pair in sorted(found))


def flags(log: NcclLog, topology: Topology) -> tuple[UnusedLink, ...]:
    """The pairs that have NVLinks but communicate over something else."""
    found = []
    for use in uses(log, topology):
        link = topology.link(use.a, use.b)
        if link is None or not kinds.nvlinks(link.kind) or use.transport == "P2P":
            continue
        variable, advice = _disabled_by(log, use.transport)
        because = f": {variable} disables the NVLinks" if variable else ""
        found.append(
            UnusedLink(
                a=use.a,
                b=use.b,
                kind=link.kind,
                transport=use.transport,
                variable=variable,
                message=f"GPU{use.a} and GPU{use.b} have {kinds.in_words(link.kind)} but communicate through "
                f"{_in_words(use)}{because}.",
                advice=advice,
            )
        )
    return tuple(found)


def gpus_of(log: NcclLog, topology: Topology | None) -> dict[int, int]:
    """The GPU of each rank, as nvidia-smi numbers them. Found by bus address if the topology has bus addresses, else by
    the device number in the log, else by the order of bus addresses, if the log has as many as the topology has
    GPUs."""
    by_bus = {gpu.bus: gpu.index for gpu in topology.devices if gpu.bus} if topology else {}
    buses = sorted({rank.bus for rank in log.ranks if rank.bus})
    if not by_bus and not _are_numbers_unique(log.ranks) and topology and len(buses) == len(topology.devices):
        by_bus = dict(zip(buses, (gpu.index for gpu in topology.devices), strict=True))
    found = {}
    for rank in log.ranks:
        number = by_bus.get(rank.bus, rank.gpu if _are_numbers_unique(log.ranks) else None)
        if number is not None:
            found[rank.rank] = number
    return found


def _are_numbers_unique(ranks: tuple[Rank, ...]) -> bool:
    """Whether the device numbers in the log identify GPUs. If every rank sees only its own GPU, all numbers are 0."""
    seen: dict[tuple[str, int], str] = {}
    known = [rank for rank in ranks if rank.gpu is not None]
    clash = any(seen.setdefault((rank.host, rank.gpu or 0), rank.bus) != rank.bus for rank in known)
    return bool(known) and not clash


def _disabled_by(log: NcclLog, transport: Transport) -> tuple[str, str]:
    """The variable with its value, and the advice."""
    names = []
    if log.variables.get("NCCL_P2P_DISABLE", "0") not in ("0", ""):
        names.append("NCCL_P2P_DISABLE")
    if log.variables.get("NCCL_P2P_LEVEL", "").upper() in _LEVELS:
        names.append("NCCL_P2P_LEVEL")
    if transport == "NET" and log.variables.get("NCCL_SHM_DISABLE", "0") not in ("0", ""):
        # This variable disables only NCCL's fallback, so it is never the only cause.
        names.append("NCCL_SHM_DISABLE")
    if names and names != ["NCCL_SHM_DISABLE"]:
        return " ".join(f"{name}={log.variables[name]}" for name in names), f"unset {' '.join(names)}"
    if log.refusals:
        return "", f'NCCL reports: "{log.refusals[0]}" Check the IOMMU and ACS settings, and: nvidia-smi topo -p2p r'
    if not any(name.startswith("NCCL_") for name in log.variables):
        return (
            "",
            "The log shows no NCCL variables. Log again with NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV, or run: env | grep NCCL",
        )
    return "", "No variable in the log disables NVLinks. Check whether the driver allows them: nvidia-smi topo -p2p r"


def _in_words(use: Use) -> str:
    words = {"SHM": "host memory", "NET": "the network", "other": use.detail}.get(use.transport, use.transport)
    return f"{words} ({use.transport}{'/' + use.detail if use.detail and use.transport != 'other' else ''})"
