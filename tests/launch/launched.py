"""One run of a test: what it told, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.launch import Event, Notice, Output, Progress, Stall
from paceline.record import Outcome


class Launched:
    def __init__(self, record: Path) -> None:
        self.record = record
        self.events: list[Event] = []
        self.outcome = Outcome(exit_code=-1, seconds=0.0)

    def output(self, stream: str = "stdout") -> str:
        return b"".join(e.data for e in self.events if isinstance(e, Output) and e.stream == stream).decode()

    def log(self, rank: int) -> str:
        return (self.record / f"log.rank{rank}.txt").read_text()

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]

    @property
    def stalls(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Stall)]

    @property
    def progress(self) -> list[Progress]:
        return [event for event in self.events if isinstance(event, Progress)]


Play = Callable[..., Launched]
