"""Limits on the time and memory of one page, because a record may come from an untrusted source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import TraceError
from paceline.options import option

FEWER = "trace fewer steps: paceline profile --steps 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLimits:
    """The limits, as set by the options of `paceline view`."""

    PANEL: ClassVar = "Page limits"
    seconds: float = option(
        30.0,
        "Time limit for reading a record's traces, and for each table made of them.",
        "S",
        names="--page-seconds",
        least=0.1,
    )
    patience: float = 30.0  # seconds that a request waits for other pages that read traces
    events: int = option(  # in all ranks' traces together
        8_000_000,
        "Most trace events to read per record; a million events take about 250 MB of memory.",
        "N",
        names="--most-events",
        least=1,
    )
    devices: int = 128  # in one trace
    steps: int = 20_000  # in one trace

    @property
    def more_time(self) -> str:
        return f"Allow more time: paceline view --page-seconds {4 * self.seconds:g}; or {FEWER}"

    @property
    def more_events(self) -> str:
        return f"; or allow more events: paceline view --most-events {4 * self.events}"

    def prove(self, what: str, found: int, most: int) -> None:
        """Raises TraceError if `found` exceeds `most`. `what` names the file and the fault."""
        if found > most:
            raise TraceError(f"{what}: {found:,}; the limit is {most:,}.", advice=f"To see this page, {FEWER}")
