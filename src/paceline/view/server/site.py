"""The list of a record's pages, in reading order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from paceline.view.pages import (
    dashboard,
    devices,
    iterations,
    kernels,
    live,
    logs,
    memory,
    ops,
    pipelines,
    ranks,
    servers,
    timeline,
    topology,
    waits,
)
from paceline.view.records.contents import is_series, shows, uses_devices
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Page


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of page. `key` is the first part of the page's address."""

    key: str
    title: str
    build: Callable[[Opened, Mapping[str, str]], Page]
    in_report: bool = True
    traced: bool = False  # reads traces or time lines, which may take long
    listed_only: bool = False  # always has an address; the side bar lists it only if it has content


# Earlier addresses of pages.
MOVED = {"results": "run", "communication": "run"}
PAGES = (
    Kind("run", "Dashboard", dashboard.build),
    Kind("live", "Live", live.build, in_report=False, listed_only=True),
    Kind("iterations", "Iterations", iterations.build),
    Kind("ranks", "Ranks", ranks.build),
    Kind("pipelines", "Input", pipelines.build),
    Kind("servers", "Servers", servers.build),
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
    """The pages that have something to show for this record. The first page of a series shows its results."""
    titles = {"run": "Results"} if is_series(record) else {}
    if not uses_devices(record):
        titles["devices"] = "Load"
    found = [page for page in PAGES if shows(record, page.key)]
    return [replace(page, title=titles.get(page.key, page.title)) for page in found]
