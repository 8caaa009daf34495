"""The bench that measures trials: one script, one zygote, one record, one time budget.

A trial is a run with its own folder below the record's `trials/`, and a line in the record's `journal.jsonl`. A trial
whose name is in the journal is not run again, so that a series can resume after Ctrl-C. `sweep`, `tune` and `converge`
decide which trials to run, and judge them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import RecordError
from paceline.launch import Event, Notice, Zygote, launch
from paceline.launch.interrupts import Interrupted
from paceline.launch.local import OtherHosts
from paceline.record import read_run
from paceline.record.folder import unwritable
from paceline.record.private import opened, write_file
from paceline.record.refuge import needs_refuge, new_refuge
from paceline.record.schema import FailureKind, Outcome
from paceline.record.stopping import stop, stop_for
from paceline.settings import RunSettings
from paceline.trials.core.result import Measured, Status, read_measured

__all__ = ["Bench", "Budget", "Interrupted", "Journal", "Measured", "Status", "details", "folder_of"]

GRACE = 2.0  # seconds that a trial may run beyond the budget …
GRACE_SHARE = 0.05  # … or this fraction of the budget, if that is more
STEPS = 100  # of a trial that runs alone, unless told
LONGEST = 120  # most letters in the name of a trial's folder


class Budget:
    """Seconds for a series of trials, counted from now; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._begun = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._begun

    @property
    def left(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - self.spent

    @property
    def over(self) -> bool:
        return self.left <= 0

    def affords(self, seconds: float) -> bool:
        return seconds <= self.left

    @property
    def limit(self) -> float | None:
        """Seconds that a trial starting now may run before it is stopped."""
        if self.seconds is None:
            return None
        return max(0.0, self.left) + max(GRACE, GRACE_SHARE * self.seconds)


class Journal:
    """The finished trials of a record, in order. When `add` returns, the trial is in the file."""

    def __init__(self, record: Path) -> None:
        self._path = record / "journal.jsonl"
        self.trials: dict[str, Measured] = {}
        try:
            text = self._path.read_bytes() if self._path.exists() else b""
            # A last line without a newline was being written when the series was killed.
            whole = text[: text.rfind(b"\n") + 1]
            if len(whole) < len(text):
                write_file(self._path, whole)
        except OSError as error:
            raise unwritable(self._path, error) from error
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                measured = msgspec.json.decode(line, type=Measured)
            except msgspec.DecodeError as error:
                raise RecordError(f"{self._path}, line {number} is damaged: {error}.") from error
            self.trials[measured.name] = measured

    def add(self, measured: Measured) -> None:
        self.trials[measured.name] = measured
        try:
            with opened(self._path, append=True) as file:
                file.write(msgspec.json.encode(measured) + b"\n")
        except OSError as error:
            stop(self._path, error)


class Bench:
    """Measures trials of one script one after another. Use from the main thread."""

    def __init__(
        self,
        settings: RunSettings,
        *,
        zygote: Zygote | OtherHosts,
        record: Path,
        budget: Budget,
        verb: str,
        alone: Callable[[RunSettings], Sequence[str]] | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        on_start: Callable[[str], None] = lambda name: None,
        on_result: Callable[[Measured], None] = lambda measured: None,
    ) -> None:
        self.settings, self.record, self.budget = settings, record, budget
        self.journal, self._place = Journal(record), Place(record, on_event)
        self._zygote, self._verb, self._alone = zygote, verb, alone
        self._on_event, self._on_start, self._on_result = on_event, on_start, on_result

    def measure(
        self, name: str, *, mods: tuple[str, ...] | None = None, alone: bool = False, **changes: Any
    ) -> Measured:
        """Runs one trial, or returns its result from the journal. `mods` replace the mods of the settings; `changes`
        replace other settings. `alone`: in a fresh process, by the command of this bench, if it has one. Waits until
        the trial ends, at most until shortly after the end of the budget. Raises Interrupted, and the errors that
        `launch` raises before a worker starts."""
        known = self.journal.trials.get(name)
        if known is not None:
            self._on_result(known)
            return known
        if mods is not None:
            changes["mods"] = mods
        settings = dataclasses.replace(self.settings, **changes)
        if self.budget.over:
            return self._not_measured(name, settings, "not run: the budget is over")
        self._on_start(name)
        begun = time.monotonic()

        def run(folder: Path) -> Outcome:
            if alone and self._alone is not None:
                steps, limit = settings.steps or STEPS, self.budget.limit
                return run_alone(self._alone(settings), into=folder, steps=steps, limit=limit)
            return launch(
                settings,
                zygote=self._zygote,
                record=folder,
                on_event=self._on_event,
                verb=self._verb,
                oversubscribe=True,  # the verb has checked the number of workers
                limit=self.budget.limit,
            )

        outcome, folder = self._place.launched(folder_of(name), run)
        if outcome.interrupted:
            raise Interrupted(outcome.exit_code)
        measured = read_measured(name, settings, record_in(folder), outcome)
        measured.seconds = time.monotonic() - begun
        if outcome.kind is FailureKind.LATE and self.budget.over:
            # Trials cut off by the budget stay out of the journal, so that a resumed series runs them.
            return self._not_measured(name, settings, "stopped: the budget is over", steps=measured.steps)
        self.journal.add(measured)
        self._on_result(measured)
        return measured

    def _not_measured(self, name: str, settings: RunSettings, why: str, *, steps: int = 0) -> Measured:
        measured = Measured(
            name=name,
            mods=list(settings.mods),
            workers=settings.workers,
            status=Status.BUDGET,
            message=why,
            steps=steps,
        )
        self._on_result(measured)
        return measured


def details(measured: Measured) -> str:
    """The full error of a failed trial: the script's traceback, the last lines of its log."""
    outcome = read_run(Path(measured.record)).outcome if measured.record else None
    return outcome.message if outcome and outcome.message else measured.message


def folder_of(name: str) -> str:
    """The name of a trial's folder: no path separators, limited length, still unique."""
    plain = re.sub(r"[^A-Za-z0-9._=+:,-]", "-", name)
    if plain == name and len(name) <= LONGEST:
        return name
    return f"{plain[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# -- alone on the machine ---------------------------------------------------------------------------------------------


FAREWELL = 20.0  # seconds that an interrupted command has to end


def run_alone(command: Sequence[str], *, into: Path, steps: int, limit: float | None) -> Outcome:
    """The outcome of the command, stopped after `steps` steps, or after `limit` seconds as a failure. Its record is
    `record_in(into)`. An interrupt ends the command, too, and is raised again."""
    program, verb, *rest = command
    typed = [sys.executable, "-m", program, verb, "--json", "--quiet", "--record", str(into), "--steps", str(steps)]
    process = subprocess.Popen(
        [*typed, *rest], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return Outcome(exit_code=1, seconds=limit or 0.0, kind=FailureKind.LATE, cause="took too long")
    except BaseException:
        _end(process)
        raise
    with contextlib.suppress(RecordError):
        if (outcome := read_run(record_in(into)).outcome) is not None:
            return outcome
    cause = f"ended with exit code {process.returncode}"
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        cause = msgspec.json.decode(printed)["error"]["message"]
    return Outcome(exit_code=process.returncode or 1, seconds=0.0, cause=cause)


def record_in(folder: Path) -> Path:
    """The record of a trial: the folder itself, or that of the command which ran alone in it."""
    return folder if (folder / "run.json").exists() else next((p.parent for p in folder.glob("*/run.json")), folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=FAREWELL)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


# -- where trials are kept --------------------------------------------------------------------------------------------
# A trial is measured by its record. One that could not write all of it is short, and is run again elsewhere.


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
