"""The program: reads the plan, measures what it asks for, and has rank 0 append a line a report, flushed, so that what
was measured before an interrupt can be read.

Every worker of a run starts it. Whatever a worker raises ends the run: a half-measured collective is no measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from paceline.comm.group import connect_store
from paceline.comm.link.client import within
from paceline.comm.measuring import collectives, devices, pairs
from paceline.comm.measuring.plan import Plan, Report, in_words
from paceline.comm.memory.engine import Engine
from paceline.settings import from_environment


def main(path: str) -> None:
    plan = msgspec.json.decode(Path(path).read_bytes(), type=Plan)
    settings = from_environment()
    with open(plan.report, "ab", buffering=0) as file:
        for report in _reports(plan, settings.world, settings.rank, settings):
            if settings.rank == 0:
                file.write(msgspec.json.encode(report) + b"\n")
                print(in_words(report), flush=True)


def _reports(plan: Plan, world: int, rank: int, settings: Any) -> Iterator[Report]:
    if plan.device_bytes and rank == 0:
        yield from devices.measure(plan)
    if world > 1:
        store = within(connect_store(settings), "bandwidth")
        engine = Engine(within(store, "meeting"), rank, world)
        if plan.pair_bytes:
            yield from pairs.measure(plan, engine, store)
        if plan.ops:
            yield from collectives.measure(plan, engine, store)


if __name__ == "__main__":
    main(sys.argv[1])
