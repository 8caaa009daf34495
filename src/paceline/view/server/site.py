"""The pages of a record, in the order in which a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.errors import RecordError
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
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Page
from paceline.view.ui.traced import has_traces


@dataclass(frozen=True, slots=True)
class Kind:
    """`key` is the first part of its address. `there` says whether a record has what the page shows."""

    key: str
    title: str
    build: Callable[[Opened, Mapping[str, str]], Page]
    there: Callable[[Opened], bool] = lambda record: True
    in_report: bool = True
    traced: bool = False  # made of traces or time lines, where there are some: it may take long
    listed_only: bool = False  # `there` only says whether it is named at the side: it can be asked for at any time


def _has_steps(record: Opened) -> bool:
    try:
        return record.steps.frame.height > 0
    except RecordError:
        return True  # its page says what is wrong with them; the others do without


PAGES = (
    Kind("run", "Dashboard", dashboard.build),
    Kind("live", "Live", live.build, live.there, in_report=False, listed_only=True),
    Kind("results", "Results", results.build, results.there),
    Kind("communication", "Communication", communication.build, communication.there),
    Kind("iterations", "Iterations", iterations.build, _has_steps),
    Kind("ranks", "Ranks", ranks.build, lambda record: len(record.ranks) > 1 and _has_steps(record)),
    Kind("timeline", "Time line", timeline.build, timeline.there, traced=True),
    Kind("ops", "Ops", ops.build, has_traces, traced=True),
    Kind("op-types", "Op types", ops.build_types, has_traces, traced=True),
    Kind("kernels", "Kernels", kernels.build, has_traces, traced=True),
    Kind("waits", "Waits", waits.build, has_traces, traced=True),
    Kind("memory", "Memory", memory.build, has_traces, traced=True),
    Kind("devices", "Devices", devices.build, devices.there, traced=True),
    Kind("topology", "Topology", topology.build, topology.there),
    Kind("logs", "Logs", logs.build, logs.there),
)


def pages_of(record: Opened) -> list[Kind]:
    """Those that have something to show."""
    return [page for page in PAGES if page.there(record)]
