"""Limits on the time and memory of one page, because a record may come from an untrusted source."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import TraceError

FEWER = "trace fewer steps: paceline profile --steps 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLimits:
    """The limits, as set by the options of `paceline view`."""

    seconds: float = 30.0  # to read a record's traces, and to compute each table from them
    patience: float = 30.0  # seconds that a request waits for other pages that read traces
    events: int = 8_000_000  # in all ranks' traces together; their tables take about 2 GB of memory
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
