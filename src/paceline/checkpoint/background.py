"""Asynchronous saves: a thread writes copies of the tensors while training goes on.

One save is in flight at a time. Its error is raised by the next save, by `wait`, or at the end of the script. A process
that ends first finishes the save.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable

from paceline.checkpoint.crew import Crew
from paceline.errors import CheckpointError
from paceline.script.output.real_files import real_files
from paceline.script.seams.api import before_leaving, current, in_own_process


class Flight:
    """One save in flight, in the process of rank 0."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write, self._error = write, ""
        # Not a daemon: Python waits for it before the process ends.
        self._thread = threading.Thread(target=self._run, name="paceline-checkpoint")
        self._thread.start()

    def _run(self) -> None:
        try:
            with real_files():
                self._write()
        except CheckpointError as error:
            self._error = error.message
        except OSError as error:
            self._error = f"{error.filename or 'the checkpoint'}: {error.strerror or error}."
        except BaseException as error:
            self._error = f"{type(error).__name__}: {error}"

    def land(self) -> None:
        """Waits for the save, and raises its error."""
        self._thread.join()
        if self._error:
            raise CheckpointError(
                f"The asynchronous save failed: {self._error}",
                advice="The path still has the checkpoint that it had before. Make room, and save again.",
            )


_flight: Flight | None = None
_stage: object = None  # whose end lands the flight


def start(write: Callable[[], None]) -> None:
    """Begins to write. Called by rank 0, when no save is in flight."""
    global _flight, _stage
    stage = current()
    if stage is None or not in_own_process():
        atexit.unregister(_land_at_exit)
        atexit.register(_land_at_exit)
    elif _stage is not stage:
        before_leaving(_land)
        _stage = stage
    _flight = Flight(write)


def finish(crew: Crew) -> None:
    """Waits for the save in flight; its error is raised on every worker. Every worker calls it."""
    crew.first("waiting for an asynchronous save", _land)


def _land() -> None:
    global _flight
    flight, _flight = _flight, None
    if flight is not None:
        flight.land()


def _land_at_exit() -> None:
    """Python reports an error at exit with a traceback of its own: print the message instead."""
    atexit.unregister(_land_at_exit)
    try:
        _land()
    except CheckpointError as error:
        print(f"paceline: {error.message}\n  {error.advice}", file=sys.stderr)
