"""The machine: this one, or as far as a record knows the one that it ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from paceline.errors import RecordError
from paceline.record.schema import WorkerInfo
from paceline.topology.choosing import DeviceChoice
from paceline.topology.host import format_list
from paceline.topology.machine import Gpu, Link, NumaNode, Package, Topology
from paceline.topology.picture import draw
from paceline.topology.survey import survey
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Note, Page, Picture
from paceline.view.ui.grid import Column, Grid

MOST = 64  # GPUs that can be drawn


class _Core(msgspec.Struct):
    id: int
    node: int = 0
    physical: tuple[int, int] = (0, 0)


class _Recorded(msgspec.Struct):
    """run.json's topology: the host, and of its GPUs what choosing among them found out."""

    name: str = ""
    cores: list[_Core] = []
    gpus: list[str] = []
    choice: DeviceChoice | None = None
    links: tuple[Link, ...] = ()


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    try:
        told = msgspec.convert(record.run.topology, _Recorded)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(f"{record.folder.file('run.json')} has a topology that is none: {error}.") from error
    topology = as_topology(told)
    blocks: list[Block] = [_drawn(topology, told.choice), _workers(record.run.workers)]
    return Page(title="Topology", blocks=blocks)


def build_machine() -> Page:
    """Of the machine that `paceline view` runs on."""
    topology = survey()
    return Page(title="This machine", lead=topology.host, blocks=[_drawn(topology, None), *_links(topology)])


def as_topology(told: _Recorded) -> Topology:
    nodes = sorted({core.node for core in told.cores})
    packages = sorted({core.physical[0] for core in told.cores})
    used = sorted({end for link in told.links for end in (link.a, link.b)})
    gpus = used or [int(name) if name.isdecimal() else number for number, name in enumerate(told.gpus)]
    if len(gpus) > MOST:
        raise RecordError(f"The record speaks of {len(gpus):,} GPUs on one host: more than can be drawn.")
    return Topology(
        host=told.name,
        source="run.json",
        devices=tuple(Gpu(index=index) for index in gpus),
        links=told.links,
        numa=tuple(
            NumaNode(id=node, cpus=format_list([c.id for c in told.cores if c.node == node])) for node in nodes[:MOST]
        ),
        packages=tuple(
            Package(
                id=package,
                cores=len({core.physical for core in told.cores if core.physical[0] == package}),
                cpus=format_list([core.id for core in told.cores if core.physical[0] == package]),
            )
            for package in packages[:MOST]
        ),
    )


def _drawn(topology: Topology, choice: DeviceChoice | None) -> Block:
    try:
        return Picture(title=topology.host or "The machine", svg=draw(topology, choice=choice))
    except (ValueError, KeyError, IndexError) as error:
        return Note(text=f"It cannot be drawn: {error}.", tone="warn")


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
        title="Where the workers were",
        columns=(
            Column(key="rank", title="rank", how="The worker.", kind="count"),
            Column(key="host", title="host", how="Its name for itself."),
            Column(key="gpu", title="GPU", how="As CUDA_VISIBLE_DEVICES names it; its first one."),
            Column(key="cores", title="cores", how="That the launcher bound it to."),
            Column(key="threads", title="threads", how="That the launcher gave it.", kind="count"),
            Column(key="pid", title="process", how="Its number on its host."),
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
                Column(key="a", title="GPU", how="By PCI bus, as nvidia-smi counts.", kind="count"),
                Column(key="b", title="GPU", how="By PCI bus, as nvidia-smi counts.", kind="count"),
                Column(key="kind", title="kind", how="As nvidia-smi topo names it."),
                Column(
                    key="gb_per_s", title="usual GB/s", how="Usual for the kind, one way; not measured.", kind="number"
                ),
                Column(key="p2p", title="peer to peer", how="Whether the driver allows it.", kind="flag"),
            ),
            rows=msgspec.to_builtins(topology.links),
        )
    ]
