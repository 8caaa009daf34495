"""Detects a frozen zygote, which can neither start workers nor report that they ended."""

from __future__ import annotations

from paceline.errors import LaunchError
from paceline.launch.zygote.handle import Zygote

_EVERY = 1.0  # seconds between two checks


class Patience:
    """Checks the zygote's state every second during a run."""

    def __init__(self, zygote: Zygote, warning: float, abort: float | None) -> None:
        self._zygote, self._warning, self._abort = zygote, warning, abort
        self._next, self._frozen_since = 0.0, -1.0
        self._told = False

    def look(self, now: float) -> str:
        """Returns a warning for the terminal, once per freeze; otherwise an empty text. Raises LaunchError after
        `--stall-abort` seconds."""
        if now < self._next:
            return ""
        self._next = now + _EVERY
        if not self._zygote.is_frozen:
            self._frozen_since, self._told = -1.0, False
            return ""
        if self._frozen_since < 0:
            self._frozen_since = now
        frozen = now - self._frozen_since
        found = f"The process that forks the workers (pid {self._zygote.pid}) is frozen (stopped by a signal)"
        if self._abort and frozen >= self._abort:
            raise LaunchError(
                f"{found} for {frozen:.0f} s (--stall-abort).",
                advice="Start the run again without stopping that process.",
            )
        limits = [limit for limit in (self._warning, self._abort) if limit]
        if self._told or not limits or frozen < min(limits):
            return ""
        self._told = True
        return f"{found}, and the run cannot end without it. To continue it, type: kill -CONT {self._zygote.pid}"
