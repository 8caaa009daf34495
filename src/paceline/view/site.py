"""The pages of a record, in the order in which a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.view.blocks import Page
from paceline.view.opened import Opened
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
from paceline.view.pages.traced import has_traces


@dataclass(frozen=True, slots=True)
class Kind:
    """`key` is the first part of its address. `there` says whether a record has what the page shows."""

    key: str
    title: str
    build: Callable[[Opened, Mapping[str, str]], Page]
    there: Callable[[Opened], bool] = lambda record: True
    in_report: bool = True
    listed_only: bool = False  # `there` only says whether it is named at the side: it can be asked for at any time


def _has_steps(record: Opened) -> bool:
    return record.steps.frame.height > 0


PAGES = (
    Kind("run", "Dashboard", dashboard.build),
    Kind("live", "Live", live.build, live.there, in_report=False, listed_only=True),
    Kind("results", "Results", results.build, results.there),
    Kind("communication", "Communication", communication.build, communication.there),
    Kind("iterations", "Iterations", iterations.build, _has_steps),
    Kind("ranks", "Ranks", ranks.build, lambda record: len(record.ranks) > 1 and _has_steps(record)),
    Kind("timeline", "Time line", timeline.build, timeline.there),
    Kind("ops", "Ops", ops.build, has_traces),
    Kind("op-types", "Op types", ops.build_types, has_traces),
    Kind("kernels", "Kernels", kernels.build, has_traces),
    Kind("waits", "Waits", waits.build, has_traces),
    Kind("memory", "Memory", memory.build, has_traces),
    Kind("devices", "Devices", devices.build, devices.there),
    Kind("topology", "Topology", topology.build, topology.there),
    Kind("logs", "Logs", logs.build, logs.there),
)


def pages_of(record: Opened) -> list[Kind]:
    """Those that have something to show."""
    return [page for page in PAGES if page.there(record)]
