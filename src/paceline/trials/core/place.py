"""Where the trials of a series are recorded: below its record or, once that disk is full, in a temporary folder.

A trial is measured by its record. One that could not write all of it is short, and is run again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from paceline.errors import RecordError
from paceline.launch import Event, Notice
from paceline.record.refuge import needs_refuge, new_refuge
from paceline.record.schema import Outcome
from paceline.record.stopping import stop_for


class Place:
    """Of one series."""

    def __init__(self, record: Path, on_event: Callable[[Event], None]) -> None:
        self._trials, self._on_event = record / "trials", on_event

    def launched(self, name: str, run: Callable[[Path], Outcome]) -> tuple[Outcome, Path]:
        """The outcome of `run(folder)`, and the folder with the trial's record. Raises what `run` raises."""
        folder = self._trials / name
        try:
            outcome = run(folder)
            if not outcome.unrecorded or outcome.interrupted:
                return outcome, folder
        except RecordError as error:
            if not needs_refuge(error):
                raise
            stop_for(error)
        self._trials = new_refuge()
        self._on_event(Notice(f"The trials are recorded in {self._trials} instead."))
        folder = self._trials / name
        return run(folder), folder
