"""Whether Python's lock is held: for how long a thread that wants it must wait.

Work that holds the lock in a thread makes the consumer wait at each of its own calls, however well the pipeline keeps
up. No clock shows that: the consumer only seems slow. So a thread is started that sleeps a moment, again and again, and
looks how late it gets to go on: promptly where others let go of the lock, after a whole switch interval where not.
"""

from __future__ import annotations

import sys
import threading
import time

NAPS = 60
NAP = 0.001  # seconds
LATE = 0.6  # of a switch interval
OFTEN = 0.1  # of the naps: a tenth of the time is worth a look


class GilProbe:
    """Asked now and then; the first time begins to look. Costs nothing once it knows."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._late = 0

    def holds(self) -> bool | None:
        """None: not known yet."""
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
