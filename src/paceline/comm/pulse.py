"""The current state of a worker, read by the control thread, the stall inspector and the live progress line.

The main thread writes, the control thread reads. Each update is a single attribute store, so no lock is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.errors import PacelineError

LONG = 2.0  # seconds of a check of Paceline's own, after which the person at the terminal is told of it


class Pulse:
    """The state of one worker. `waiting` names the collective that the main thread is in; an empty string means that
    the main thread computes."""

    def __init__(self, notify: Callable[[str, str], None] | None = None) -> None:
        self.step = 0
        self._seam, self.passed = "start", 0  # the last seam passed, and the number of seams passed
        self.waiting = ""
        self.waiting_since = 0.0
        self.collectives = 0  # entered so far: in a stall, the peers wait for the worker with the fewest
        self.before_waiting: Callable[[], None] | None = None  # sends what peers may be waiting for
        self.alone = 0  # the thread that loads samples which no other worker loads: it must not use collectives
        self.view = ""
        self.speaks = False  # what the script writes here goes to its real files
        self.latest: Any = None  # the last Step
        self.noise: float | None = None  # the gradient noise scale, if measured
        self._check = ("", 0.0)  # what is being checked, and since when
        self.asking = False  # the main thread waits for standard input: somebody is at a prompt
        self.evaluated_after = 0.0  # seconds of evaluation after the last step, once the script has ended
        self._notify = notify
        self.on_idle: Callable[[str, str], None] | None = None  # called with a mod that does nothing, and a notice
        self.on_failure: Callable[[PacelineError], None] | None = None  # called with the error that ends the run

    @property
    def seam(self) -> str:
        """The last seam that the worker passed."""
        return self._seam

    @seam.setter
    def seam(self, name: str) -> None:
        self._seam = name
        self.passed += 1

    def enter(self, collective: str) -> None:
        """The main thread starts to wait for its peers, in a collective or while connecting."""
        if self.before_waiting is not None:
            self.before_waiting()
        self.collectives += 1
        self.waiting_since = time.monotonic()
        self.waiting = collective

    def leave(self) -> None:
        """The collective is done."""
        self.waiting = ""

    @contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Around a check of Paceline's own that may take long. `what`: a clause for the person at the terminal."""
        before, self._check = self._check, (what, time.monotonic())
        try:
            yield
        finally:
            self._check = before

    @property
    def long_check(self) -> str:
        """What has been checked for long; empty if nothing."""
        what, since = self._check
        return what if time.monotonic() - since > LONG else ""

    def notice(self, text: str, *, mod: str = "") -> None:
        """Prints a notice on the user's terminal, once per run: the launcher drops repeats and notices of other
        ranks. `mod`: the mod that reports its own settings."""
        if self._notify is not None:
            self._notify(text, mod)

    def not_in_force(self, mod: str, why: str) -> None:
        """Reports that a mod which the user asked for does nothing: at once, and in the summary of the run."""
        tell = self.on_idle or (lambda mod, text: self.notice(text, mod=mod))
        tell(mod, f"--mod {mod} is not in force: {why}")

    def failed(self, error: PacelineError) -> None:
        """Reports the error that ends the run, even if the script has not seen the error yet."""
        if self.on_failure is not None:
            self.on_failure(error)
