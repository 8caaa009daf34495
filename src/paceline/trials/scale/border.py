"""What the border between hosts costs: the same workers on one host and on two, and the steps from number to number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import msgspec

from paceline.trials.scale.why import VISIBLE
from paceline.units import count, percent


class Border(msgspec.Struct, kw_only=True):
    """The same number of workers on one host (`within`) and on several (`over`), in samples per second. `kept`: the
    speed over the border, as a fraction of that within; `low` and `high` are the bounds of its interval. `lost`: the
    parts of 1 - `kept`, by cause; empty if tied."""

    workers: int
    hosts: int
    within: float
    over: float
    kept: float
    low: float
    high: float
    tied: bool  # the interval has no difference, or the rounds are too few
    lost: dict[str, float]
    waited_for: int | None = None  # the rank that the other workers mostly wait for

    @property
    def sentence(self) -> str:
        here = f"{count(self.workers, 'worker')} on {count(self.hosts, 'host')} instead of one"
        ratio = f"{self.kept:.2f}× the speed ({self.low:.2f}–{self.high:.2f})"
        if self.tied:
            why = "the rounds are too few to tell" if self.low == self.high else "no difference beyond their interval"
            return f"The border between hosts: {here} have {ratio}: {why}."
        costs = [
            f"{cost * 100:.0f} points go to {cause}"
            for cause, cost in sorted(self.lost.items(), key=lambda each: -each[1])
            if cost >= VISIBLE
        ]
        told = f"; {', '.join(costs)}" if costs and self.kept < 1 else ""
        late = self.waited_for is not None and self.lost.get("imbalance", 0.0) >= VISIBLE
        who = f" (the others wait for rank {self.waited_for})" if late else ""
        return f"The border between hosts: {here} have {ratio}{told}{who}."


class Step(Protocol):
    """A number of workers, and what it adds to the next smaller one."""

    @property
    def workers(self) -> int: ...
    @property
    def hosts(self) -> int: ...
    @property
    def added(self) -> float | None: ...
    @property
    def tied(self) -> bool: ...


def steps_sentence(points: Sequence[Step]) -> str:
    """Which steps cross a border between hosts, and their efficiency against those within; empty if none does."""
    pairs = list(pairwise(points))
    over = [(less, more) for less, more in pairs if more.hosts > less.hosts and more.added is not None]
    inside = [(less, more) for less, more in pairs if more.hosts == less.hosts and more.added is not None]
    if not over:
        return ""

    def told(less: Step, more: Step) -> str:
        return f"{'≈ ' * (less.tied or more.tied)}{percent(more.added or 0.0, digits=0)}"

    crossed = ", ".join(
        f"{less.workers} → {more.workers} workers ({less.hosts} → {count(more.hosts, 'host')}) {told(less, more)}"
        for less, more in over
    )
    stayed = ", ".join(f"{less.workers} → {more.workers} workers {told(less, more)}" for less, more in inside)
    against = f" Within hosts: {stayed}." if stayed else ""
    return f"Efficiency of the steps over a border between hosts: {crossed}.{against}"
