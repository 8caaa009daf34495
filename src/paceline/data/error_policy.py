"""`on_error`: what happens to records that cannot be read and samples that cannot be made.

raise   the first error ends the run and names file, position and reason (the default)
skip    the sample is left out and counted
warn    the sample is left out and counted, with a warning, and the count is reported at the end of the epoch
"""

from __future__ import annotations

import threading
import warnings
from typing import Literal

from paceline.errors import DataError

Policy = Literal["raise", "skip", "warn"]
POLICIES = ("raise", "skip", "warn")
SHOWN = 5  # warnings about single samples; further samples are only counted
KEPT = 100  # reasons kept for the report


class LostSamples:
    """Counts the samples that all stages and threads of one pipeline left out."""

    def __init__(self, *, keeps: bool = False) -> None:
        """`keeps`: in a pool process, which does not count or warn, but sends the errors to the parent process."""
        self.kept: list[tuple[str, Policy]] = []
        self._keeps = keeps
        self.count = 0
        self.reasons: list[str] = []
        self._loud = 0
        self._said = 0
        self._lock = threading.Lock()

    def lose(self, error: DataError, policy: Policy) -> None:
        """Raises `error` or counts it, as `policy` says."""
        if policy == "raise":
            raise error
        if self._keeps:
            self.kept.append((error.message, policy))
            return
        with self._lock:
            self.count += 1
            if len(self.reasons) < KEPT:
                self.reasons.append(error.message)
            self._loud += policy == "warn"
            shown = policy == "warn" and self._loud <= SHOWN
        if shown:
            warnings.warn(f"Left out: {error.message}", stacklevel=2)

    def say(self) -> None:
        """At the end of an epoch: warns with the number of samples that were left out under "warn"."""
        with self._lock:
            new, self._said = self._loud - self._said, self._loud
        if new:
            warnings.warn(f"{new} samples were left out in this epoch, because they could not be read.", stacklevel=2)
