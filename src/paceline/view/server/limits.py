"""What one page may cost: records come from anywhere, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import TraceError

FEWER = "trace fewer steps: paceline profile --steps 3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewLimits:
    """As `paceline view` was asked."""

    seconds: float = 30.0  # for reading a record's traces, and for each table that is made of them
    patience: float = 30.0  # seconds that a visitor waits for other pages over traces
    events: int = 8_000_000  # of all ranks' traces together: some 2 GB of memory while tables are made of them
    devices: int = 128  # of one trace
    steps: int = 20_000  # of one trace

    @property
    def more_time(self) -> str:
        return f"Allow more time: paceline view --page-seconds {4 * self.seconds:g}; or {FEWER}"

    @property
    def more_events(self) -> str:
        return f"; or allow more events: paceline view --most-events {4 * self.events}"

    def prove(self, what: str, found: int, most: int) -> None:
        """TraceError where there is more of something than tables can be made of."""
        if found > most:
            raise TraceError(f"{what}: {found:,}; tables are made of at most {most:,}.", advice=f"To see it, {FEWER}")
