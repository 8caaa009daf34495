"""State that the cursors of one pipeline share: meters, engines, and the processes that outlive an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from paceline.data.error_policy import LostSamples
from paceline.data.execution.engines import Chooser
from paceline.data.meters import Clock, Meter, Pace
from paceline.data.planning import stages as s


class Closable(Protocol):
    def close(self, *, wait: bool) -> None: ...


@dataclass(slots=True)
class Runtime:
    """State that the cursors of one pipeline share."""

    losses: LostSamples = field(default_factory=LostSamples)
    meters: list[Meter] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    pace: Pace = field(default_factory=Pace)
    choosers: list[Chooser] = field(default_factory=list)
    prefetch_processes: list[Closable] = field(default_factory=list)

    def meter(self, name: str) -> Meter:
        meter = Meter(name)
        self.meters.append(meter)
        return meter

    def chooser(self, how: s.How) -> Chooser:
        chooser = Chooser(how, self.pace)
        self.choosers.append(chooser)
        return chooser

    def close(self, *, wait: bool) -> None:
        """Ends threads and processes that outlive an epoch."""
        for process in self.prefetch_processes:
            process.close(wait=wait)
        for chooser in self.choosers:
            chooser.close(wait=wait)
