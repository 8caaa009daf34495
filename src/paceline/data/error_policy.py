"""What was lost: records that cannot be read and samples that cannot be made, by policy.

raise   the first one ends the run, with its file, place and reason (the default)
skip    it is left out, and counted
warn    it is left out with a warning, and at the end the count is said
"""

from __future__ import annotations

import threading
import warnings
from typing import Literal

from paceline.errors import DataError

Policy = Literal["raise", "skip", "warn"]
POLICIES = ("raise", "skip", "warn")
SHOWN = 5  # warnings of single ones, before it is the count that counts
KEPT = 100  # reasons kept for the report


class LostSamples:
    """Counts over all stages and threads of one pipeline."""

    def __init__(self, *, keeps: bool = False) -> None:
        """`keeps`: in a process of ours, which says nothing itself and tells all of it to the one that counts."""
        self.kept: list[tuple[str, Policy]] = []
        self._keeps = keeps
        self.count = 0
        self.reasons: list[str] = []
        self._loud = 0
        self._said = 0
        self._lock = threading.Lock()

    def lose(self, error: DataError, policy: Policy) -> None:
        """Raises `error`, or counts it."""
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
        """At the end of an epoch: how many, where somebody wants to know."""
        with self._lock:
            new, self._said = self._loud - self._said, self._loud
        if new:
            warnings.warn(f"{new} samples were left out in this epoch, because they could not be read.", stacklevel=2)
