"""The entry point of a bandwidth worker: reads the plan, measures, and writes the reports.

Rank 0 appends one line per report and flushes each line, so that reports written before an interrupt stay readable.
Every worker of a run starts this program. An exception in any worker ends the run, because a partly measured collective
is not a measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from paceline.comm.measuring import collectives, devices, pairs
from paceline.comm.measuring.plan import MeasuringPlan, Report, in_words
from paceline.comm.memory.engine import MemoryEngine
from paceline.settings import of_this_process
from paceline.wire.link import connect_store, within


def main(path: str) -> None:
    plan = msgspec.json.decode(Path(path).read_bytes(), type=MeasuringPlan)
    settings = of_this_process()
    with open(plan.report, "ab", buffering=0) as file:
        for report in _reports(plan, settings.world, settings.rank, settings):
            if settings.rank == 0:
                file.write(msgspec.json.encode(report) + b"\n")
                print(in_words(report), flush=True)


def _reports(plan: MeasuringPlan, world: int, rank: int, settings: Any) -> Iterator[Report]:
    if plan.device_bytes and rank == 0:
        yield from devices.measure(plan)
    if world > 1:
        store = within(connect_store(settings), "bandwidth")
        engine = MemoryEngine(within(store, "meeting"), rank, world)
        if plan.pair_bytes:
            yield from pairs.measure(plan, engine, store)
        if plan.ops:
            yield from collectives.measure(plan, engine, store)


if __name__ == "__main__":
    main(sys.argv[1])
