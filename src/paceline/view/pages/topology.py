"""The pages of topology: of this machine, and of a record's machine as far as run.json describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from paceline.errors import RecordError
from paceline.record.schema import WorkerInfo
from paceline.reports.report import Column, Sentence
from paceline.topology.choosing import DeviceChoice
from paceline.topology.host import format_list, parse_list
from paceline.topology.machine import Gpu, Link, NumaNode, Package, Topology
from paceline.topology.picture import DARK, LIGHT, draw, narrow
from paceline.topology.survey import survey
from paceline.units import count
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page, Picture
from paceline.view.ui.grid import Grid

MOST = 64  # GPUs that can be drawn


class _Core(msgspec.Struct):
    id: int
    node: int = 0
    physical: tuple[int, int] = (0, 0)


class _Recorded(msgspec.Struct):
    """run.json's topology: the host, and what the choice of GPUs recorded about them."""

    name: str = ""
    cores: list[_Core] = []
    gpus: list[str] = []
    choice: DeviceChoice | None = None
    links: tuple[Link, ...] = ()


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    try:
        recorded = msgspec.convert(record.run.topology, _Recorded)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(f"{record.folder.file('run.json')} has an invalid topology: {error}.") from error
    topology = as_topology(recorded)
    if plain := _plain(topology, [core.id for core in recorded.cores]):
        return Page(title="Topology", blocks=[Sentence(plain + _placed(record.run.workers))])
    blocks: list[Block] = [_drawn(topology, recorded.choice), _workers(record.run.workers)]
    return Page(title="Topology", blocks=blocks)


def build_machine() -> Page:
    """The page of the machine that `paceline view` runs on."""
    topology = survey()
    if plain := _plain(topology, [core for node in topology.numa for core in parse_list(node.cpus)]):
        return Page(title="This machine", blocks=[Sentence(plain)])
    return Page(title="This machine", lead=topology.host, blocks=[_drawn(topology, None), *_links(topology)])


def as_topology(recorded: _Recorded) -> Topology:
    nodes = sorted({core.node for core in recorded.cores})
    packages = sorted({core.physical[0] for core in recorded.cores})
    used = sorted({end for link in recorded.links for end in (link.a, link.b)})
    gpus = used or [int(name) if name.isdecimal() else number for number, name in enumerate(recorded.gpus)]
    if len(gpus) > MOST:
        raise RecordError(f"run.json lists {len(gpus):,} GPUs on one host; the picture shows at most {MOST}.")
    return Topology(
        host=recorded.name,
        source="run.json",
        devices=tuple(Gpu(index=index) for index in gpus),
        links=recorded.links,
        numa=tuple(
            NumaNode(id=node, cpus=format_list([c.id for c in recorded.cores if c.node == node]))
            for node in nodes[:MOST]
        ),
        packages=tuple(
            Package(
                id=package,
                cores=len({core.physical for core in recorded.cores if core.physical[0] == package}),
                cpus=format_list([core.id for core in recorded.cores if core.physical[0] == package]),
            )
            for package in packages[:MOST]
        ),
    )


def _placed(workers: Sequence[WorkerInfo]) -> str:
    used = [core for worker in workers for core in worker.cores]
    if len(workers) < 2 or not used:
        return ""
    where = "each on cores of its own" if len(used) == len(set(used)) else "on the same cores"
    return f" {count(len(workers), 'worker')} ran on it, {where}."


def _plain(topology: Topology, cores: Sequence[int]) -> str:
    """The machine in a sentence, if there is nothing to draw: no GPU, and one place for all memory."""
    if topology.devices or len(topology.numa) > 1 or len(topology.packages) > 1:
        return ""
    host = topology.host or "The host"
    return f"{host} has {count(len(cores), 'core')} in one NUMA node and no GPU: there is no placement to choose."


def _drawn(topology: Topology, choice: DeviceChoice | None) -> Block:
    try:
        drawings = {
            (theme, width): draw(topology, choice=choice, look=narrow(look) if width == "narrow" else look)
            for theme, look in (("light", replace(LIGHT, paper="none")), ("dark", DARK))
            for width in ("wide", "narrow")
        }
        return Picture(title=topology.host or "The machine", drawings=drawings)
    except (ValueError, KeyError, IndexError) as error:
        return Sentence(f"The topology cannot be drawn: {error}.", "warn")


def _workers(workers: Sequence[WorkerInfo]) -> Grid:
    rows: list[dict[str, Any]] = [
        {
            "rank": worker.rank,
            "host": worker.host,
            "gpu": worker.gpus[0] if worker.gpus else None,
            "cores": format_list(worker.cores),
            "threads": worker.threads,
            "pid": worker.pid,
        }
        for worker in workers
    ]
    return Grid(
        name="workers",
        title="Placement of the workers",
        columns=(
            Column("rank", "rank", "Rank of the worker.", "count"),
            Column("host", "host", "Host name, as the host reports it."),
            Column("gpu", "GPU", "First GPU of the worker, as in CUDA_VISIBLE_DEVICES."),
            Column("cores", "cores", "Cores that the launcher bound the worker to."),
            Column("threads", "threads", "Threads that the launcher gave the worker.", "count"),
            Column("pid", "process", "Process ID on the host."),
        ),
        rows=rows,
        empty="The record names no workers.",
    )


def _links(topology: Topology) -> list[Block]:
    if not topology.links:
        return []
    return [
        Grid(
            name="links",
            title="Links",
            columns=(
                Column("a", "GPU", "GPU index in PCI bus order, as in nvidia-smi.", "count"),
                Column("b", "GPU", "GPU index in PCI bus order, as in nvidia-smi.", "count"),
                Column("kind", "kind", "Kind of link, as nvidia-smi topo names it."),
                Column("gb_per_s", "usual GB/s", "Usual bandwidth of this kind, one way; not measured.", "number"),
                Column("p2p", "peer to peer", "Whether the driver allows peer-to-peer access.", "flag"),
            ),
            rows=msgspec.to_builtins(topology.links),
        )
    ]
