"""How far the clock of a host is from that of the controller, measured over the line to its agent.

A heartbeat may carry the controller's time, and the agent answers with its own. The answer was given between the two
times of the controller, so half of the way there and back is the largest error of one reading. The readings with the
shortest ways give the offset and, if they are far enough apart, the drift.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from paceline.record.schema import ClockOffset

FEW = 16  # readings that are made at once, when a host is first heard
KEPT = 4096  # half an hour of readings
SPAN = 10.0  # seconds that readings must be apart to tell a drift
PARTS = 16  # of the time: each has its best reading, so that no part is without one
POOR = 3.0  # times the shortest way: longer ones were held up


class Reading(NamedTuple):
    """One reading. All in seconds; `at` is the controller's time."""

    at: float
    offset: float
    error: float


class HostClock:
    """Of one host. A positive offset: the host's clock is ahead. One thread takes readings, another may ask."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=KEPT)

    @property
    def wants_more(self) -> bool:
        return len(self._readings) < FEW

    def take(self, asked: float, there: float, heard: float) -> None:
        """A reading that was asked for and heard at these times of the controller."""
        if heard >= asked:  # else the controller's clock was set meanwhile
            middle = (asked + heard) / 2
            self._readings.append(Reading(middle, there - middle, (heard - asked) / 2))

    def measured(self) -> ClockOffset | None:
        """None: the host was not heard. The error is the largest that the readings allow at any time between them."""
        readings = list(self._readings)
        if not readings:
            return None
        best = _best(readings)
        center = best[0].at if len(best) == 1 else (best[0].at + best[-1].at) / 2
        offset, drift = _line(best, center)
        error = max(abs(offset + drift * (each.at - center) - each.offset) + each.error for each in best)
        return ClockOffset(offset=offset, drift=drift, error=error, at=center, readings=len(readings))


def _best(readings: list[Reading]) -> list[Reading]:
    """The best reading of each part of the time, without those that were held up."""
    first, last = readings[0].at, readings[-1].at
    if last - first < SPAN:
        return [min(readings, key=lambda each: each.error)]
    found: dict[int, Reading] = {}
    for each in readings:
        part = min(int(PARTS * (each.at - first) / (last - first)), PARTS - 1)
        if part not in found or each.error < found[part].error:
            found[part] = each
    least = min(each.error for each in found.values())
    return [each for _, each in sorted(found.items()) if each.error <= POOR * least]


def _line(readings: list[Reading], center: float) -> tuple[float, float]:
    """Offset at the time `center`, and drift: least squares, weighted by the errors."""
    weights = [1 / max(each.error, 1e-9) ** 2 for each in readings]
    total = sum(weights)
    at = sum(w * (each.at - center) for w, each in zip(weights, readings, strict=True)) / total
    offset = sum(w * each.offset for w, each in zip(weights, readings, strict=True)) / total
    spread = sum(w * (each.at - center - at) ** 2 for w, each in zip(weights, readings, strict=True))
    if readings[-1].at - readings[0].at < SPAN or not spread:
        return offset, 0.0
    drift = (
        sum(w * (each.at - center - at) * (each.offset - offset) for w, each in zip(weights, readings, strict=True))
        / spread
    )
    return offset - drift * at, drift
