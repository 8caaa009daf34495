"""Schedules the pages that read traces, so that they do not delay other pages.

A page that reads traces may take as long as its time limit. So the pages of one record are built one after the other
(they need the same tables), at most TOGETHER pages at a time, in threads of their own. A waiting request holds no
thread, and has a timeout. All other pages are built at once, in the server's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

import anyio
from anyio import to_thread

from paceline.errors import TraceError
from paceline.view.records.limits import ViewLimits
from paceline.view.records.record import Opened

TOGETHER = 4  # pages that read traces at the same time

T = TypeVar("T")


class Turns:
    """The schedule of one server."""

    def __init__(self, limits: ViewLimits) -> None:
        self._limits = limits
        self._few = anyio.CapacityLimiter(TOGETHER)

    async def take(self, records: Sequence[Opened], make: Callable[[], T]) -> T:
        """Calls `make` when no other page reads the traces of these records. Raises TraceError if the wait takes too
        long. A page that is being built is completed, for the next request."""
        async with AsyncExitStack() as held:
            with anyio.move_on_after(self._limits.patience):
                # Lock in the order of names: requests that compare A with B and B with A must not deadlock.
                for record in sorted({record.name: record for record in records}.values(), key=lambda one: one.name):
                    await held.enter_async_context(record.turn)
                # A running thread is not cancelled: the tables have a time limit of their own.
                return await to_thread.run_sync(make, limiter=self._few)
        names = " and ".join(record.name for record in records)
        raise TraceError(
            f"{names}: waited more than {self._limits.patience:g} s for other pages that read traces.",
            advice=f"Reload the page in a moment. {self._limits.more_time}",
        )
