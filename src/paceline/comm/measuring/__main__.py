"""The entry point of a bandwidth worker: takes the plan, measures, and writes the reports into the record.

Rank 0 appends one line per report and flushes each line, so that reports written before an interrupt stay readable.
Every worker of a run starts this program. An exception in any worker ends the run, because a partly measured collective
is not a measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from paceline.comm.measuring import collectives, devices, pairs
from paceline.comm.measuring.plan import REPORTS, HostTopology, MeasuringPlan, Report, in_words
from paceline.comm.measuring.rounds import OverGloo, Together
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.network.gloo import gloo_group
from paceline.record.private import opened
from paceline.settings import WorkerSettings, of_this_process
from paceline.topology.survey import survey
from paceline.wire.link import connect_store, within


def main(text: str) -> None:
    plan = msgspec.json.decode(text, type=MeasuringPlan)
    settings = of_this_process()
    with opened(Path(settings.record) / REPORTS, append=True) if settings.rank == 0 else nullcontext() as file:
        for report in _reports(plan, settings.world, settings.rank, settings):
            if file is not None:
                file.write(msgspec.json.encode(report) + b"\n")
                print(in_words(report), flush=True)


def _reports(plan: MeasuringPlan, world: int, rank: int, settings: WorkerSettings) -> Iterator[Report]:
    if plan.device_bytes and rank == 0:
        yield from devices.measure(plan)
    if world == 1:
        return
    store = within(connect_store(settings), "bandwidth")
    if settings.hosts == 1:
        engine: Together = MemoryEngine(within(store, "meeting"), rank, world)
        where: dict[str, Any] = {}
    else:
        engine = OverGloo(gloo_group(within(store, "meeting"), rank, world, address=settings.address))
        hosts = [int(raw) for raw in engine.gather_bytes(str(settings.host_rank).encode())]
        where = {"hosts": hosts, "address": settings.address}
    if plan.topologies:
        yield from _topologies(engine, settings)
    if plan.pair_bytes:
        yield from pairs.measure(plan, engine, store, **where)
    if plan.ops:
        yield from collectives.measure(plan, engine, store, **where)


def _topologies(engine: Together, settings: WorkerSettings) -> Iterator[HostTopology]:
    own = b""
    if settings.local_rank == 0:
        found = HostTopology(host=settings.host_rank, interface=settings.interface, topology=survey())
        own = msgspec.json.encode(found)
    for raw in filter(None, engine.gather_bytes(own)):
        yield msgspec.json.decode(raw, type=HostTopology)


if __name__ == "__main__":
    main(sys.argv[1])
