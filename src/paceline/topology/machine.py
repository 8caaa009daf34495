"""`Topology`: one machine's devices and links, as immutable structs that are JSON and back.

Where it comes from is not its business: `survey` looks at this machine, `reading` at texts of others. Lists of
CPUs are written as the kernel writes them ("0-19,40-59"); sizes are bytes, rates of links GB/s one way, rates
of NICs Gbit/s, as on their boxes. What could not be found out is None or empty.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.errors import UsageError

SCHEMA = 1


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `index` counts as nvidia-smi does: by PCI bus."""

    index: int
    name: str = ""
    uuid: str = ""
    bus: str = ""  # 0000:07:00.0
    node: int | None = None  # its NUMA node
    cpus: str = ""  # those next to it
    memory: int | None = None
    pcie_generation: int | None = None  # of the slot and the card together
    pcie_width: int | None = None
    nvlinks: int = 0  # that are up, to whomever
    nvlink_generation: int | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How GPU `a` and GPU `b` are joined, a < b: `kind` by the legend in `links`."""

    a: int
    b: int
    kind: str
    gb_per_s: float  # usual for the kind, one way
    p2p: bool | None = None  # may one read the other's memory? None: nobody said


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """From a NIC to another device of the matrix: `to` is GPU0 or NIC1."""

    to: str
    kind: str


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A network device. `label` is its name in the matrix (NIC0), `name` the system's (mlx5_0, eth0)."""

    label: str
    name: str
    kind: str = ""  # infiniband, ethernet, virtual
    gbit_per_s: float | None = None
    up: bool | None = None
    bus: str = ""
    node: int | None = None
    interfaces: tuple[str, ...] = ()  # of an RDMA device: its network interfaces
    paths: tuple[Path, ...] = ()


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node."""

    id: int
    cpus: str = ""
    memory: int | None = None
    distances: tuple[int, ...] = ()  # to each node, in order of id; 10 is itself


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU as it is bought."""

    id: int
    model: str = ""
    cores: int = 0  # physical ones
    cpus: str = ""  # logical ones


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """All caches of one level and kind that are of one size. `cpus` has an entry for each: who shares it."""

    level: int
    kind: str  # data, instruction, unified
    size: int
    cpus: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What this process may use of the machine."""

    cpus: str = ""
    quota: float | None = None  # CPUs' worth of time that the control group grants
    memory: int | None = None  # bytes that it grants


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    schema: int = SCHEMA
    host: str = ""
    source: str = ""  # how this was found out
    devices: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()  # one for each pair of GPUs
    numa: tuple[Node, ...] = ()
    nics: tuple[Nic, ...] = ()
    packages: tuple[Package, ...] = ()
    caches: tuple[Cache, ...] = ()
    limits: Limits = Limits()

    def link(self, a: int, b: int) -> Link | None:
        """Between two GPUs, by index; None between a GPU and itself, or where one is not there."""
        a, b = min(a, b), max(a, b)
        return next((link for link in self.links if (link.a, link.b) == (a, b)), None)

    def gpu(self, index: int) -> Gpu | None:
        """The GPU of that index."""
        return next((gpu for gpu in self.devices if gpu.index == index), None)

    def labels(self) -> list[str]:
        """The devices of the matrix, in its order."""
        return [f"GPU{gpu.index}" for gpu in self.devices] + [nic.label for nic in self.nics]

    def kinds(self) -> dict[tuple[str, str], str]:
        """The matrix: how each label is joined to each, both ways round. A pair that nobody spoke of is missing."""
        found = {(label, label): "X" for label in self.labels()}
        for link in self.links:
            found[f"GPU{link.a}", f"GPU{link.b}"] = found[f"GPU{link.b}", f"GPU{link.a}"] = link.kind
        for nic in self.nics:
            for path in nic.paths:
                found[nic.label, path.to] = found[path.to, nic.label] = path.kind
        return found


def to_json(topology: Topology) -> bytes:
    """One document; the same keys as `paceline topo --json`, which `from_json` reads as well."""
    return msgspec.json.format(msgspec.json.encode(topology)) + b"\n"


def from_json(text: bytes | str) -> Topology:
    """The topology of a document, whatever else is in it. UsageError where it has none."""
    try:
        found = msgspec.json.decode(text)
        if not isinstance(found, dict) or not {"devices", "links", "numa"} <= found.keys():
            raise UsageError(
                "This JSON has no devices, links and numa: it is not a topology.",
                advice="Make one on the machine in question: paceline topo --json > topology.json",
            )
        _check_schema(found)
        return msgspec.convert(found, Topology)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"This JSON is not a topology of ours: {error}.",
            advice="Make it again on the machine in question: paceline topo --json > topology.json",
        ) from None
    except msgspec.DecodeError as error:
        line = _line_of(text, str(error))
        raise UsageError(
            f"This is no whole JSON document{line}: {error}.",
            advice="Make it again on the machine in question: paceline topo --json > topology.json",
        ) from None


def _check_schema(found: dict[str, Any]) -> None:
    schema = found.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise UsageError(
            f"This topology has schema {schema}, and this version of paceline reads {SCHEMA}.",
            advice="Update paceline, or make the topology with this version.",
        )


def _line_of(text: bytes | str, error: str) -> str:
    """msgspec names a byte; people count lines."""
    data = text.encode() if isinstance(text, str) else text
    _, _, byte = error.rpartition("(byte ")
    number = byte.rstrip(")")
    where = int(number) if number.isdigit() else len(data)
    return f", line {data[:where].count(10) + 1}"
