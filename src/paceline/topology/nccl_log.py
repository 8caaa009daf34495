"""Reads NCCL's log: transports between ranks, rings, trees, and NCCL variables.

Reads the output of `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV`, of one worker or of all workers in one
file, mixed with other output. Lines about other things are skipped: only a log without any path raises an error.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from paceline.errors import UsageError
from paceline.topology import pci

Transport = Literal["P2P", "SHM", "NET", "other"]

ADVICE = "Log a run, then pass its record: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,ENV paceline run …"
_LINE = re.compile(
    r"(?:(?P<host>\S+):(?P<process>\d+):(?P<thread>\d+)\s+)?\[(?P<device>\d+)\] NCCL (?:INFO|WARN) (?P<said>.*)"
)
_ROUTE = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)\[([0-9a-f]+)\] -> (\d+)\[([0-9a-f]+)\]"
    r"(?: \[(send|receive)\])? via (.+?)(?: comm 0x\w+.*)?$"
)
_RING = re.compile(r"Channel (\d+)/\d+ :((?:\s+\d+)+)$")
_TREES = re.compile(r"\[(\d+)\] (-?\d+(?:/-?\d+)*)->(\d+)->(-?\d+)")
_VARIABLE = re.compile(r"(NCCL_\w+) set by environment to (.*?)\.?$")
_RANK = re.compile(r"\brank (\d+) n[rR]anks (\d+)\b.*?(?:cudaDev (\d+))?(?: nvmlDev (\d+))?(?: busId ([0-9a-f]+))")
_HOSTS = re.compile(r"\bnNodes (\d+)\b")
_VERSION = re.compile(r"NCCL version (\S+)")
_NETWORK = re.compile(r"Using network (.+?)\.?$")
_REFUSED = re.compile(r"(P2P is disabled between connected GPUs .*|Could not enable P2P between .*)")
_SMALLEST_BUS = 0x100  # brackets hold a device number, or (before NCCL 2.17) a bus address from this value on


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """The host and the GPU of a rank: the GPU by nvidia-smi's number or by bus address, if the log has them."""

    rank: int
    host: str = ""
    gpu: int | None = None
    bus: str = ""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The transport from one rank to another, with all channels that use it."""

    source: int
    target: int
    transport: Transport
    detail: str = ""  # CUMEM, IPC, direct pointer; Socket/0, IB/0/GDRDMA
    channels: tuple[int, ...] = ()


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's place in the tree of a channel: its children (`down`) and its parent (`up`)."""

    channel: int
    rank: int
    up: int | None
    down: tuple[int, ...]


class NcclRing(msgspec.Struct, frozen=True, kw_only=True):
    """The order of ranks in the ring of a channel."""

    channel: int
    ranks: tuple[int, ...]


class NcclLog(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a log."""

    version: str = ""
    network: str = ""
    hosts: int | None = None  # number of hosts
    ranks: tuple[Rank, ...] = ()
    routes: tuple[Route, ...] = ()
    rings: tuple[NcclRing, ...] = ()
    trees: tuple[Tree, ...] = ()
    variables: dict[str, str] = {}
    refusals: tuple[str, ...] = ()  # NCCL's own messages about failed peer-to-peer access


class _Reader:
    """Collects facts line by line."""

    def __init__(self) -> None:
        self.version = self.network = ""
        self.hosts: int | None = None
        self.ranks: dict[int, Rank] = {}
        self.routes: dict[tuple[int, int, Transport, str], set[int]] = {}
        self.rings: dict[int, tuple[int, ...]] = {}
        self.trees: dict[tuple[int, int], Tree] = {}
        self.variables: dict[str, str] = {}
        self.refusals: dict[str, None] = {}
        self.lines = 0

    def take(self, line: str) -> None:
        if version := _VERSION.search(line):
            self.version = self.version or version[1]
        found = _LINE.search(line)
        if not found:
            return
        self.lines += 1
        host, said = found["host"] or "", found["said"].strip()
        if hosts := _HOSTS.search(said):
            self.hosts = max(self.hosts or 0, int(hosts[1]))
        if route := _ROUTE.match(said):
            self._route(route, host)
        elif ring := _RING.match(said):
            self.rings[int(ring[1])] = tuple(map(int, ring[2].split()))
        elif said.startswith("Trees "):
            self._trees(said)
        elif variable := _VARIABLE.search(said):
            self.variables[variable[1]] = variable[2]
        elif refused := _REFUSED.search(said):
            self.refusals[refused[1]] = None
        elif network := _NETWORK.search(said):
            self.network = network[1]
        elif rank := _RANK.search(said):
            self._place(int(rank[1]), host, gpu=rank[4] or rank[3], bus=rank[5])

    def _route(self, found: re.Match[str], host: str) -> None:
        channel, source, at, target, to, way, via = found.groups()
        transport, detail = transport_of(via)
        self.routes.setdefault((int(source), int(target), transport, detail), set()).add(int(channel))
        # The sender wrote the line, unless it says "receive". P2P and SHM connect ranks of the same host.
        self._place(int(source), host if way != "receive" else "", bracket=at)
        self._place(int(target), host if way == "receive" or transport in ("P2P", "SHM") else "", bracket=to)

    def _place(
        self, rank: int, host: str, *, gpu: str | None = None, bus: str | None = None, bracket: str = ""
    ) -> None:
        if bracket:
            is_bus = not bracket.isdigit() or int(bracket, 16) >= _SMALLEST_BUS
            gpu, bus = (None, bracket) if is_bus else (bracket, None)
        before = self.ranks.get(rank, Rank(rank=rank))
        self.ranks[rank] = Rank(
            rank=rank,
            host=before.host or host,
            gpu=before.gpu if gpu is None else int(gpu),
            bus=pci.bus_name(bus) if bus else before.bus,
        )

    def _trees(self, said: str) -> None:
        for channel, down, rank, up in _TREES.findall(said):
            self.trees[int(channel), int(rank)] = Tree(
                channel=int(channel),
                rank=int(rank),
                up=None if up == "-1" else int(up),
                down=tuple(int(each) for each in down.split("/") if each != "-1"),
            )


def read(text: str) -> NcclLog:
    """The content of a log. Raises UsageError if the text is not an NCCL log or contains no paths."""
    reader = _Reader()
    for line in text.splitlines():
        reader.take(line)
    if not reader.lines:
        raise UsageError("The log has no NCCL lines (… NCCL INFO …).", advice=ADVICE)
    if not reader.routes and not reader.rings and not reader.trees:
        raise UsageError(f"The log has {reader.lines} NCCL lines, but none shows a path between ranks.", advice=ADVICE)
    return NcclLog(
        version=reader.version,
        network=reader.network,
        hosts=reader.hosts,
        ranks=tuple(reader.ranks[rank] for rank in sorted(reader.ranks)),
        routes=tuple(
            Route(source=source, target=target, transport=transport, detail=detail, channels=tuple(sorted(channels)))
            for (source, target, transport, detail), channels in sorted(reader.routes.items())
        ),
        rings=tuple(NcclRing(channel=channel, ranks=ranks) for channel, ranks in sorted(reader.rings.items())),
        trees=tuple(tree for _, tree in sorted(reader.trees.items())),
        variables=reader.variables,
        refusals=tuple(reader.refusals),
    )


def transport_of(via: str) -> tuple[Transport, str]:
    """Transport and detail: `P2P/CUMEM/read` is P2P with CUMEM/read. Older versions write `direct shared memory`."""
    head, _, detail = via.strip().partition("/")
    if "shared memory" in via:
        return "SHM", via.strip().removesuffix("shared memory").strip()
    if head in ("P2P", "SHM", "NET"):
        return head, detail  # type: ignore[return-value]
    return "other", via.strip()
