"""Measures whether other threads hold the GIL (Python's global interpreter lock).

Threads that hold the GIL slow the consumer down, even if the pipeline keeps up, and the meters show only a slow
consumer. So a thread sleeps for a moment, again and again, and measures its delay: short if other threads release the
GIL, and a whole switch interval if they do not.
"""

from __future__ import annotations

import sys
import threading
import time

NAPS = 60
NAP = 0.001  # seconds
LATE = 0.6  # of a switch interval: a longer delay counts as late
OFTEN = 0.1  # share of late naps from which on the GIL counts as held


class GilProbe:
    """`holds` starts the measurement at its first call. Costs nothing after the measurement."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._late = 0

    def holds(self) -> bool | None:
        """Whether other threads hold the GIL; None: not known yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="paceline-gil-probe", daemon=True)
            self._thread.start()
        return None if self._thread.is_alive() else self._late > OFTEN * NAPS

    def _look(self) -> None:
        late = NAP + LATE * sys.getswitchinterval()
        for _ in range(NAPS):
            began = time.perf_counter()
            time.sleep(NAP)
            self._late += time.perf_counter() - began > late
