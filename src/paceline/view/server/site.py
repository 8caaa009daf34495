"""The pages of a record, in the order in which a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.view.pages import (
    communication,
    dashboard,
    devices,
    iterations,
    kernels,
    live,
    logs,
    memory,
    ops,
    ranks,
    results,
    timeline,
    topology,
    waits,
)
from paceline.view.records.contents import shows
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Page


@dataclass(frozen=True, slots=True)
class Kind:
    """`key` is the first part of its address."""

    key: str
    title: str
    build: Callable[[Opened, Mapping[str, str]], Page]
    in_report: bool = True
    traced: bool = False  # made of traces or time lines, where there are some: it may take long
    listed_only: bool = False  # can be asked for at any time; named at the side where it shows something


PAGES = (
    Kind("run", "Dashboard", dashboard.build),
    Kind("live", "Live", live.build, in_report=False, listed_only=True),
    Kind("results", "Results", results.build),
    Kind("communication", "Communication", communication.build),
    Kind("iterations", "Iterations", iterations.build),
    Kind("ranks", "Ranks", ranks.build),
    Kind("timeline", "Time line", timeline.build, traced=True),
    Kind("ops", "Ops", ops.build, traced=True),
    Kind("op-types", "Op types", ops.build_types, traced=True),
    Kind("kernels", "Kernels", kernels.build, traced=True),
    Kind("waits", "Waits", waits.build, traced=True),
    Kind("memory", "Memory", memory.build, traced=True),
    Kind("devices", "Devices", devices.build, traced=True),
    Kind("topology", "Topology", topology.build),
    Kind("logs", "Logs", logs.build),
)


def pages_of(record: Opened) -> list[Kind]:
    """Those that have something to show."""
    return [page for page in PAGES if shows(record, page.key)]
