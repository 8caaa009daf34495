"""The course that every run shares: its entry in the record, its errors, and its outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline import threads
from paceline.errors import LaunchError, PacelineError, RecordError
from paceline.launch.events import Event, Notice, Teller
from paceline.launch.failures import limits
from paceline.launch.failures.failure import explain
from paceline.launch.interrupts import Signals
from paceline.launch.versions import installed
from paceline.launch.watch import Watch
from paceline.record import Outcome, Run, last_step, prepare, stopping, write_run
from paceline.record.about.origin import without_secrets
from paceline.record.folder import release
from paceline.record.private import reserving
from paceline.settings import RunSettings
from paceline.strategies import catalog as strategies


def recorded(
    run: RunSettings,
    *,
    record: Path,
    verb: str,
    topology: dict[str, Any],
    watched: Callable[[Run, Signals], Outcome],
) -> Outcome:
    """Writes the record's entry before and after `watched`, which starts the workers and waits until all have ended.
    Passes errors on, and notes them in the record."""
    threads.forget()
    prepare(record, share=run.share_record)
    record = record.resolve()
    entry = Run(
        paceline=paceline.__version__,
        verb=verb,
        script=run.script,
        arguments=list(run.arguments),
        settings=dataclasses.asdict(run) | {"environment": without_secrets(run.environment, all_variables=True)},
        mods=list(run.mods),
        strategy=strategies.parse(run.strategy).entry.name if run.launch_as is None else "script",
        versions=installed(),
        topology=topology,
        started=time.time(),
    )
    write_run(record, entry)
    try:
        with Signals() as signals:
            outcome = watched(entry, signals)
    except Exception as error:
        short = limits.shortage(error)
        told = LaunchError(short[0], advice=short[1]) if short is not None else error
        if isinstance(told, PacelineError):
            _conclude(record, entry, Outcome(exit_code=1, seconds=0.0, cause=told.message, message=str(told)))
        if told is error:
            raise
        raise told from error
    _conclude(record, entry, outcome)
    return outcome


@contextlib.contextmanager
def going_on(on_event: Callable[[Event], None]) -> Iterator[Teller]:
    """Around a run: what it tells of is shown by a thread of its own. A record that can no longer be written is told as
    an event, once, and the run goes on; it has descriptors in reserve."""

    def unrecorded(error: RecordError) -> None:
        tell(Notice(f"{error.message} Recording stops here; the script goes on.\n{error.advice}".rstrip()))

    with reserving(), Teller(on_event) as tell, stopping.listening(unrecorded):
        yield tell


def outcome_of(watch: Watch, record: Path, seconds: float) -> Outcome:
    """How a run has ended."""
    beats = [standing.beat for standing in watch.standings if standing.beat is not None]
    outcome = Outcome(
        exit_code=0,
        seconds=seconds,
        steps=max([*(beat.step for beat in beats), *_recorded(record, len(watch.standings))], default=0),
        view=next((beat.view for beat in beats if beat.view), ""),
        notices=watch.notices,
        not_in_force=watch.not_in_force,
        evaluated_after=max((beat.evaluated_after for beat in beats), default=0.0),
    )
    if watch.left_with is not None:
        outcome.exit_code, outcome.interrupted = watch.left_with, True
        outcome.cause = f"Ended as asked, after the script's state was saved in {watch.saves_to}."
        outcome.message = f"{outcome.cause}\nTo go on from it, type the same command with --resume auto."
    elif watch.interrupted is not None:
        outcome.exit_code, outcome.interrupted = 128 + watch.interrupted, True
        outcome.cause = outcome.message = f"Interrupted by {signal.Signals(watch.interrupted).name}."
    elif watch.cause is not None:
        outcome.exit_code = watch.cause.exit_code
        outcome.failed_rank, outcome.cause = watch.cause.rank, watch.cause.cause
        outcome.kind, outcome.error = watch.cause.kind, watch.cause.error
        outcome.message = explain(watch.cause, watch.standings[watch.cause.rank].host, record)
    return outcome


def _recorded(record: Path, workers: int) -> list[int]:
    """The last step of each rank in the record: a killed worker could not send a last heartbeat."""
    found = (last_step(record, rank) for rank in range(workers))
    return [step.step for step in found if step is not None]


def _conclude(record: Path, entry: Run, outcome: Outcome) -> None:
    """Writes the outcome to the record, also of a run that could not write all of its record."""
    entry.outcome = outcome
    shutil.rmtree(record / "scratch", ignore_errors=True)  # files of ranks above 0: see script/output/rank0.py
    release(record)
    if lost := stopping.why():
        outcome.unrecorded = lost
        outcome.notices.append(lost)
    write_run(record, entry)
    outcome.unrecorded = stopping.why()
