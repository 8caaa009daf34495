"""`Topology`: the devices and links of one machine, as immutable structs that convert to and from JSON.

`survey` builds a Topology of this machine; `reading` builds one from a file. CPU lists are written as the kernel writes
them ("0-19,40-59"). Sizes are in bytes, link rates in GB/s in one direction, NIC rates in Gbit/s. Unknown values are
None or empty.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.errors import UsageError

SCHEMA = 1


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `index` is the number of nvidia-smi, in the order of PCI bus addresses."""

    index: int
    name: str = ""
    uuid: str = ""
    bus: str = ""  # PCI address such as 0000:07:00.0
    node: int | None = None  # NUMA node
    cpus: str = ""  # CPUs local to the GPU
    memory: int | None = None
    pcie_generation: int | None = None  # the maximum that slot and card both support
    pcie_width: int | None = None
    nvlinks: int = 0  # active NVLinks to all other devices
    nvlink_generation: int | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The link between GPU `a` and GPU `b`, a < b. `kind` is a key of `links.LEGEND`, such as NV2 or SYS."""

    a: int
    b: int
    kind: str
    gb_per_s: float  # usual for the kind, in one direction
    p2p: bool | None = None  # whether one GPU may read the other's memory; None: unknown


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """The path from a NIC to another device of the matrix. `to` is a label such as GPU0 or NIC1."""

    to: str
    kind: str


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A network device. `label` is its name in the matrix (NIC0), `name` its system name (mlx5_0, eth0)."""

    label: str
    name: str
    kind: str = ""  # infiniband, ethernet, virtual
    gbit_per_s: float | None = None
    up: bool | None = None
    bus: str = ""
    node: int | None = None
    interfaces: tuple[str, ...] = ()  # the network interfaces of an RDMA device
    paths: tuple[Path, ...] = ()


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node."""

    id: int
    cpus: str = ""
    memory: int | None = None
    distances: tuple[int, ...] = ()  # NUMA distances to each node, in order of id; 10 is the node itself


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU package (socket)."""

    id: int
    model: str = ""
    cores: int = 0  # number of physical cores
    cpus: str = ""  # logical CPUs


class CpuCache(msgspec.Struct, frozen=True, kw_only=True):
    """All caches of one level, kind and size. `cpus` has one entry per cache: the CPUs that share the cache."""

    level: int
    kind: str  # data, instruction, unified
    size: int
    cpus: tuple[str, ...] = ()


class CgroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the machine that this process may use."""

    cpus: str = ""
    quota: float | None = None  # cgroup limit, in CPUs
    memory: int | None = None  # cgroup limit, in bytes


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    schema: int = SCHEMA
    host: str = ""
    source: str = ""  # where the topology comes from
    devices: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()  # one for each pair of GPUs
    numa: tuple[NumaNode, ...] = ()
    nics: tuple[Nic, ...] = ()
    packages: tuple[Package, ...] = ()
    caches: tuple[CpuCache, ...] = ()
    limits: CgroupLimits = CgroupLimits()

    def link(self, a: int, b: int) -> Link | None:
        """The link between two GPUs, by index; None if both are the same or a GPU does not exist."""
        a, b = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (a, b)), None)

    def gpu(self, index: int) -> Gpu | None:
        """The GPU with that index, or None."""
        return next((gpu for gpu in self.devices if gpu.index == index), None)

    def labels(self) -> list[str]:
        """The device labels of the matrix, in matrix order."""
        return [f"GPU{gpu.index}" for gpu in self.devices] + [nic.label for nic in self.nics]

    def kinds(self) -> dict[tuple[str, str], str]:
        """The matrix: the kind of link for each pair of labels, in both orders. Unknown pairs are missing."""
        found = {(label, label): "X" for label in self.labels()}
        for link in self.links:
            found[f"GPU{link.a}", f"GPU{link.b}"] = found[f"GPU{link.b}", f"GPU{link.a}"] = link.kind
        for nic in self.nics:
            for path in nic.paths:
                found[nic.label, path.to] = found[path.to, nic.label] = path.kind
        return found


def to_json(topology: Topology) -> bytes:
    """One JSON document with the keys of `paceline topo --json`; `from_json` reads both."""
    return msgspec.json.format(msgspec.json.encode(topology)) + b"\n"


def from_json(text: bytes | str) -> Topology:
    """The topology in a JSON document; other keys are ignored. Raises UsageError if the document has no valid
    topology."""
    try:
        found = msgspec.json.decode(text)
        if not isinstance(found, dict) or not {"devices", "links", "numa"} <= found.keys():
            raise UsageError(
                "This JSON document is not a topology: it needs the keys devices, links and numa.",
                advice="Create the file on the machine that it describes: paceline topo --json > topology.json",
            )
        _check_schema(found)
        return msgspec.convert(found, Topology)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"This JSON document is not a valid topology: {error}.",
            advice="Create the file again on the machine that it describes: paceline topo --json > topology.json",
        ) from None
    except msgspec.DecodeError as error:
        line = _line_of(text, str(error))
        raise UsageError(
            f"This JSON document is incomplete or invalid{line}: {error}.",
            advice="Create the file again on the machine that it describes: paceline topo --json > topology.json",
        ) from None


def _check_schema(found: dict[str, Any]) -> None:
    schema = found.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise UsageError(
            f"This topology has schema {schema}, but this version of paceline reads schemas up to {SCHEMA}.",
            advice="Update paceline, or create the topology with this version.",
        )


def _line_of(text: bytes | str, error: str) -> str:
    """The line of an error: msgspec reports a byte offset."""
    data = text.encode() if isinstance(text, str) else text
    _, _, byte = error.rpartition("(byte ")
    number = byte.rstrip(")")
    where = int(number) if number.isdigit() else len(data)
    return f", line {data[:where].count(10) + 1}"
