"""What a worker is doing right now, for whoever asks: the control thread, the stall inspector, the live line.

The main thread writes, the control thread reads; each field is one attribute store, so no lock is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paceline.errors import PacelineError


class Pulse:
    """One per worker. `waiting` names the collective that the main thread is in, empty while it computes."""

    def __init__(self, notify: Callable[[str, str], None] | None = None) -> None:
        self.step = 0
        self._seam, self.passed = "start", 0  # the last seam that was passed, and how many were
        self.waiting = ""
        self.waiting_since = 0.0
        self.collectives = 0  # how many this worker has entered: the one with fewer is the one that is missed
        self.view = ""
        self.latest: Any = None  # the last Step
        self.noise: float | None = None  # the gradient noise scale, where it is measured
        self._notify = notify
        self.on_failure: Callable[[PacelineError], None] | None = None  # told of what ends the run, as it happens

    @property
    def seam(self) -> str:
        """The last seam that was passed."""
        return self._seam

    @seam.setter
    def seam(self, name: str) -> None:
        self._seam = name
        self.passed += 1

    def enter(self, collective: str) -> None:
        """The main thread begins to wait for its peers: in a collective, or to connect to them."""
        self.collectives += 1
        self.waiting_since = time.monotonic()
        self.waiting = collective

    def leave(self) -> None:
        """The collective is done."""
        self.waiting = ""

    def notice(self, text: str, *, mod: str = "") -> None:
        """Says something to the person at the terminal, once per run; the launcher drops repeats and other ranks'.
        `mod`: the mod that tells of its own settings."""
        if self._notify is not None:
            self._notify(text, mod)

    def failed(self, error: PacelineError) -> None:
        """This worker has met what ends the run; its script may not know yet."""
        if self.on_failure is not None:
            self.on_failure(error)
