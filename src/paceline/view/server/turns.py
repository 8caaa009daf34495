"""Who computes when: pages that need traces take turns, and keep nobody else waiting.

Such a page may take as long as its limit says. So those of one record are made one after the other (they need the same
tables), few at a time in all, in threads of their own; whoever waits takes no thread, and gives up in time. All other
pages are made at once, in the server's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import anyio
from anyio import to_thread

from paceline.errors import TraceError
from paceline.view.records.record import Opened
from paceline.view.server.limits import ViewLimits

TOGETHER = 4  # pages over traces that are made at the same time

T = TypeVar("T")


class Turns:
    """Of one server."""

    def __init__(self, limits: ViewLimits) -> None:
        self._limits = limits
        self._few = anyio.CapacityLimiter(TOGETHER)

    async def take(self, records: Sequence[Opened], make: Callable[[], T]) -> T:
        """What it makes, once it is the turn of these records' traces. TraceError where that takes too long; what is
        being made then is made to its end, for the next visitor."""
        async with AsyncExitStack() as held:
            with anyio.move_on_after(self._limits.patience):
                # In one order, whoever asks: two visitors who compare A with B and B with A don't wait for each other.
                for record in sorted({record.name: record for record in records}.values(), key=lambda one: one.name):
                    await held.enter_async_context(record.turn)
                # Once a thread has it, it is not cancelled: the tables watch the time themselves.
                return await to_thread.run_sync(make, limiter=self._few)
        names = " and ".join(record.name for record in records)
        raise TraceError(
            f"Other pages over traces are being made: {names} had to wait for more than {self._limits.patience:g} s.",
            advice=f"Look again in a moment. {self._limits.more_time}",
        )
