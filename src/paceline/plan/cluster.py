"""The cluster of a plan: hosts of one kind, their devices and links, and the network between them.

A cluster is a preset (`dgx1x4@25`), a topology as `paceline topo --json` prints it (one host), or a JSON file:

    {"host": "dgx1", "hosts": 4, "gbit_per_s": 25, "nics": 1, "latency": 1e-5, "price_per_hour": 12.0}

`host` is a preset's name, a topology's file, or a topology. All other keys replace those of the preset.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import UsageError
from paceline.topology.links import usual_rate
from paceline.topology.machine import Gpu, Link, Topology, from_json

GIB = 1 << 30
EXAMPLE = '{"host": "dgx1", "hosts": 4, "gbit_per_s": 25}'


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of links between devices are those of the topology; a host without GPUs has `slots` workers that exchange
    data through its memory. Latencies are those of one message between two workers."""

    name: str = ""
    host: Topology = Topology()
    hosts: int = 1
    slots: int = 1  # workers on each host
    nics: int = 1  # of each host
    gbit_per_s: float = 10.0  # of each NIC, nominal
    goodput: float = 0.9  # fraction of it that a large message reaches
    latency: float = 10e-6  # seconds of a message between hosts
    local_latency: float = 5e-6  # … and within a host
    memory_gb_per_s: float = 10.0  # at which a host's workers exchange data through its memory, all together
    memory: int = 0  # bytes for each worker; 0: unknown
    p2p: bool = True  # GPUs reach each other's memory
    price_per_hour: float = 0.0  # of one host; 0: unknown

    @property
    def workers(self) -> int:
        return self.hosts * self.slots

    @property
    def network(self) -> float:
        """Bytes per second of one host, in each direction."""
        return self.nics * self.gbit_per_s * self.goodput * 1e9 / 8


def _machine(kinds: list[list[str]], *, nodes: list[int], nvlink: int, pcie: int, memory: int, name: str) -> Topology:
    count = len(kinds)
    return Topology(
        source="preset",
        devices=tuple(
            Gpu(index=i, name=name, node=nodes[i], memory=memory, nvlink_generation=nvlink) for i in range(count)
        ),
        links=tuple(
            Link(a=a, b=b, kind=kinds[a][b], gb_per_s=usual_rate(kinds[a][b], nvlink=nvlink, generation=pcie))
            for a in range(count)
            for b in range(a + 1, count)
        ),
    )


def _cube_mesh() -> list[list[str]]:
    """The hybrid cube mesh of a DGX-1V: the number of NVLinks of each pair."""
    two = {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}
    one = {(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)}

    def kind(a: int, b: int) -> str:
        pair = (min(a, b), max(a, b))
        return "X" if a == b else "NV2" if pair in two else "NV1" if pair in one else "SYS"

    return [[kind(a, b) for b in range(8)] for a in range(8)]


def _all_to_all(kind: str) -> list[list[str]]:
    return [["X" if a == b else kind for b in range(8)] for a in range(8)]


def _pcie_box() -> list[list[str]]:
    """Two sockets with two PCIe switches each, and two GPUs on each switch."""

    def kind(a: int, b: int) -> str:
        return "X" if a == b else "PIX" if a // 2 == b // 2 else "NODE" if a // 4 == b // 4 else "SYS"

    return [[kind(a, b) for b in range(8)] for a in range(8)]


HALVES = [0, 0, 0, 0, 1, 1, 1, 1]
PRESETS = {
    "dgx1": Cluster(
        name="DGX-1 V100",
        host=_machine(_cube_mesh(), nodes=HALVES, nvlink=2, pcie=3, memory=32 * GIB, name="V100"),
        slots=8,
        nics=4,
        gbit_per_s=100,
        memory=32 * GIB,
    ),
    "dgxa100": Cluster(
        name="DGX A100",
        host=_machine(_all_to_all("NV12"), nodes=HALVES, nvlink=3, pcie=4, memory=80 * GIB, name="A100"),
        slots=8,
        nics=8,
        gbit_per_s=200,
        memory=80 * GIB,
    ),
    "dgxh100": Cluster(
        name="DGX H100",
        host=_machine(_all_to_all("NV18"), nodes=HALVES, nvlink=4, pcie=5, memory=80 * GIB, name="H100"),
        slots=8,
        nics=8,
        gbit_per_s=400,
        memory=80 * GIB,
    ),
    "pcie8": Cluster(
        name="PCIe box, 8 GPUs",
        host=_machine(_pcie_box(), nodes=HALVES, nvlink=0, pcie=4, memory=24 * GIB, name="GPU"),
        slots=8,
        gbit_per_s=25,
        memory=24 * GIB,
    ),
    "cpu": Cluster(name="CPU nodes", slots=1, gbit_per_s=10, latency=50e-6),
}
_NAME = re.compile(
    rf"(?P<name>{'|'.join(PRESETS)})(?:x(?P<hosts>\d+))?(?:@(?:(?P<nics>\d+)x)?(?P<rate>\d+(?:\.\d+)?))?"
)


def read_cluster(text: str) -> Cluster:
    """The cluster that was typed after --cluster: a preset, or a JSON file. UsageError if there is none."""
    if "/" in text or text.endswith((".json", ".txt", ".xml")) or Path(text).is_file():
        return _from_file(Path(text))
    found = _NAME.fullmatch(text.lower())
    if found is None:
        near = difflib.get_close_matches(text.lower().partition("@")[0], PRESETS, n=1)
        raise UsageError(
            f"--cluster {text}: there is no such preset or file. Presets: {', '.join(PRESETS)}.",
            advice=f"Type: --cluster {near[0] if near else 'dgx1'}x4, or the path of a JSON file. "
            "All presets: paceline plan --clusters",
        )
    changes: dict[str, Any] = {"hosts": int(found["hosts"] or 1)}
    if found["rate"]:
        changes |= {"gbit_per_s": float(found["rate"]), "nics": int(found["nics"] or 1)}
    cluster = msgspec.structs.replace(PRESETS[found["name"]], **changes)
    return _checked(cluster, f"--cluster {text}")


def _from_file(path: Path) -> Cluster:
    from paceline.topology.reading import read, read_text

    text = read_text(path, "--cluster")
    try:
        told = msgspec.json.decode(text) if text.lstrip()[:1] == "{" else None
    except msgspec.DecodeError as error:
        raise UsageError(
            f"--cluster {path}: this is not valid JSON: {error}.", advice=f"A cluster looks like this: {EXAMPLE}"
        ) from None
    if told is None or "devices" in told:  # a topology of one host
        return _checked(of_topology(read(text), Cluster(name=path.stem)), f"--cluster {path}")
    if not isinstance(told, dict) or "host" not in told:
        raise UsageError(
            f"--cluster {path}: the key host is missing; found {', '.join(told) or 'no keys'}.",
            advice=f"A cluster looks like this: {EXAMPLE}",
        )
    try:
        cluster = _of_host(told.pop("host"), path)
        given = msgspec.convert(told, Cluster)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"--cluster {path}: this is not a cluster: {error}.", advice=f"A cluster looks like this: {EXAMPLE}"
        ) from None
    name = {"name": path.stem} | {key: getattr(given, key) for key in told}
    return _checked(msgspec.structs.replace(cluster, **name), f"--cluster {path}")


def _of_host(host: Any, path: Path) -> Cluster:
    if isinstance(host, str):
        beside = path.parent / host
        return read_cluster(str(beside) if beside.is_file() else host)
    return of_topology(from_json(msgspec.json.encode(host)), Cluster(name=path.stem))


def of_topology(topology: Topology, cluster: Cluster) -> Cluster:
    """One host with this topology: a worker on each GPU, or one on each granted CPU."""
    from paceline.topology.host import parse_list

    up = [nic.gbit_per_s for nic in topology.nics if nic.gbit_per_s and nic.up is not False]
    memory = min((gpu.memory for gpu in topology.devices if gpu.memory), default=0)
    network = {"nics": len(up), "gbit_per_s": min(up)} if up else {}
    cpus = len(parse_list(topology.limits.cpus)) if topology.limits.cpus else 1
    return msgspec.structs.replace(
        cluster, host=topology, slots=len(topology.devices) or cpus, memory=memory, **network
    )


def _checked(cluster: Cluster, option: str) -> Cluster:
    wrong = [
        key
        for key in ("hosts", "slots", "nics", "gbit_per_s", "goodput", "latency", "local_latency", "memory_gb_per_s")
        if not getattr(cluster, key) > 0
    ]
    if wrong:
        raise UsageError(
            f"{option}: {wrong[0]} must be above 0; found {getattr(cluster, wrong[0])}.",
            advice=f"A cluster looks like this: {EXAMPLE}",
        )
    if cluster.host.devices and cluster.slots > len(cluster.host.devices):
        raise UsageError(
            f"{option}: slots is {cluster.slots}, but the host has {len(cluster.host.devices)} GPUs.",
            advice=f"Set slots to {len(cluster.host.devices)} or less.",
        )
    return cluster


def with_bandwidth(cluster: Cluster, path: Path) -> Cluster:
    """The cluster with what `paceline bandwidth` measured on one of its hosts: its record, or its --json document."""
    file = path / "verdict.json" if path.is_dir() else path
    try:
        told = msgspec.json.decode(file.read_bytes())
        rows = [(pair["a"], pair["b"], pair["gb_per_s"], pair["latency"]) for pair in told["pairs"] if pair["direct"]]
        rows = rows or [(pair["a"], pair["b"], pair["gb_per_s"], pair["latency"]) for pair in told["pairs"]]
        sums = [(each["bytes"], each["busbw"]) for each in told["collectives"] if each["op"] == "all_reduce"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise UsageError(
            f"--bandwidth {path}: no measurements of paceline bandwidth ({type(error).__name__}: {error}).",
            advice="Create the file on one of the hosts: paceline bandwidth --json > bandwidth.json",
        ) from None
    changes: dict[str, Any] = {"local_latency": min((row[3] for row in rows), default=cluster.local_latency)}
    if cluster.host.devices:
        rates = {(min(a, b), max(a, b)): rate for a, b, rate, _ in rows}
        links = tuple(
            msgspec.structs.replace(link, gb_per_s=rates.get((link.a, link.b), link.gb_per_s))
            for link in cluster.host.links
        )
        changes["host"] = msgspec.structs.replace(cluster.host, links=links)
    elif sums:
        # Each worker's ring step crosses the memory: `slots` flows at the bus bandwidth of the largest message.
        changes["memory_gb_per_s"] = max(sums)[1] * max(2, told.get("workers", 2))
    return msgspec.structs.replace(cluster, **changes)
