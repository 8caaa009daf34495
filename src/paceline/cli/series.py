"""Code shared by the verbs that run a series of trials: options, a resumable record, a progress line, and the sequence
check, record, trials, verdict, plots, JSON. Each verb adds its own part."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec
import typer
from rich.console import Console

from paceline import __version__
from paceline.cli.options import ScriptOptions
from paceline.cli.session import Session
from paceline.cli.terminal import progress_bar, results, stderr
from paceline.errors import RecordError, UsageError
from paceline.launch import Event, Notice, Stall, check
from paceline.launch import events as launch_events
from paceline.launch.host import HostsGoneError
from paceline.launch.interrupts import exit_code_of
from paceline.options import OUTPUT, option, read_time
from paceline.record import read_run, write_run
from paceline.record.folder import short_name
from paceline.record.private import keep_private, write_file
from paceline.record.schema import Outcome, Run
from paceline.record.stopping import stop
from paceline.settings import RunSettings
from paceline.topology import Host
from paceline.trials.core.bench import Bench, Budget, Measured
from paceline.units import seconds


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(ScriptOptions):
    """The options of verbs that run a series of trials on a bench."""

    budget: float | None = option(None, "Time limit: 90s, 5m, 1h30m.", "TIME", usual="no limit", reads=read_time)
    resume: Path | None = option(
        None, "Continue the interrupted series of this record. Needs the same command.", "RECORD", panel=OUTPUT
    )


def open_record(session: Session, settings: RunSettings, asked: SeriesOptions) -> tuple[Path, RunSettings]:
    """The record of the series and its settings. A new folder, or the record to resume: that must come from the same
    command, and its seed is used unless a seed was given."""
    verb, script, resume = session.verb, settings.script, asked.resume
    if resume is None:
        name, share = f"{verb}-{short_name(script)}", settings.share_record
        return session.open_record(asked.record, name, script=script, share=share, labels=asked.labels()), settings
    run = read_run(resume)
    if run.verb != verb:
        raise UsageError(
            f"--resume {resume}: this is a record of {run.verb}, not of {verb}.", advice=f"Name a record of {verb}."
        )
    known = msgspec.convert(run.settings, RunSettings)
    if not session.seeded:
        settings = dataclasses.replace(settings, seed=known.seed)
    changed = [
        field.name
        for field in dataclasses.fields(RunSettings)
        if getattr(known, field.name) != getattr(settings, field.name)
    ]
    if changed:
        raise UsageError(
            f"--resume {resume}: this series was started with other values of {', '.join(changed).replace('_', ' ')}.",
            advice="Type the same command again, with --resume; only --budget may differ.",
        )
    if not settings.share_record:
        keep_private(resume)
    return session.resume_record(resume), settings


def run_of(verb: str, settings: RunSettings) -> Run:
    """The run.json of a series of runs of one script."""
    return Run(
        paceline=__version__,
        verb=verb,
        script=settings.script,
        arguments=list(settings.arguments),
        settings=dataclasses.asdict(settings),
        mods=list(settings.mods),
    )


@contextmanager
def recorded(record: Path, run: Run) -> Iterator[Outcome]:
    """Writes the series' run.json before and after the block, so that a killed series is still readable. The block sets
    the outcome; an interrupt ends the block and is noted in the outcome."""
    run.started = begun = time.time()
    outcome = Outcome(exit_code=1, seconds=0.0)
    write_run(record, run)
    try:
        yield outcome
    except KeyboardInterrupt as error:
        outcome.interrupted = True
        outcome.exit_code = exit_code_of(error)
    except HostsGoneError as error:
        outcome.error, outcome.cause = "HostLost", error.message
        raise
    finally:
        outcome.seconds = time.time() - begun
        if outcome.exit_code and not outcome.interrupted and not outcome.cause:
            outcome.error, outcome.cause = _first_failure(record)
        run.outcome = outcome
        write_run(record, run)


def _first_failure(record: Path) -> tuple[str, str]:
    """The exception and the cause of the first trial that failed; empty if none did."""
    runs = []
    for path in record.glob("trials/*/run.json"):
        with suppress(RecordError):
            runs.append(read_run(path.parent))
    for trial in sorted(runs, key=lambda run: run.started):
        if trial.outcome is not None and trial.outcome.exit_code and trial.outcome.cause:
            return trial.outcome.error, trial.outcome.cause
    return "", ""


class PlannedResult(Protocol):
    """The result of a trial that was planned beforehand."""

    @property
    def interrupted(self) -> bool: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def failure(self) -> str: ...


def conclude(outcome: Outcome, measured: Sequence[PlannedResult]) -> None:
    """Sets the outcome of a plan: interrupted during a trial, with a failed trial, or successful."""
    stopped = next((result.exit_code for result in measured if result.interrupted), 0)
    outcome.interrupted = bool(stopped)
    outcome.exit_code = stopped or int(any(result.failure for result in measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series of trials on a bench, with checked settings and an open record."""

    session: Session
    settings: RunSettings
    record: Path
    budget: Budget
    console: Console  # for progress and problems
    results: Console
    line: Line

    @classmethod
    def begin(cls, session: Session, settings: RunSettings, asked: SeriesOptions, *, host: Host) -> Series:
        """Checks the settings, opens the record and starts the budget. A UsageError leaves no record."""
        # Checked before the record's folder is made, so that a user's mistake leaves no record.
        check(settings, host, oversubscribe=asked.oversubscribe or session.hosts is not None)
        record, settings = open_record(session, settings, asked)
        return cls.on(session, settings, record, asked.budget)

    @classmethod
    def on(cls, session: Session, settings: RunSettings, record: Path, budget: float | None) -> Series:
        """A series in this record."""
        console, limit = stderr(), Budget(budget)
        line = Line(console, limit, quiet=session.quiet)
        told = results(json=session.json)
        return cls(
            session=session, settings=settings, record=record, budget=limit, console=console, results=told, line=line
        )

    def bench(
        self,
        *,
        label: Callable[[str], str],
        alone: Callable[[RunSettings], Sequence[str]] | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_result: Callable[[Measured], None] = lambda measured: None,
    ) -> Bench:
        """The bench that measures the trials and shows their progress. `label` turns a trial's name into words;
        `alone` gives the command of a trial that runs in a fresh process."""
        return Bench(
            self.settings,
            zygote=self.session.workers(),
            record=self.record,
            budget=self.budget,
            verb=self.session.verb,
            alone=alone,
            on_event=on_event or self.line.event,
            on_start=lambda name: self.line.start(label(name), trial=True),
            on_result=on_result,
        )

    @contextmanager
    def running(self) -> Iterator[Outcome]:
        """Runs the trials inside this block: see `recorded`."""
        try:
            with recorded(self.record, run_of(self.session.verb, self.settings)) as outcome, self.line:
                yield outcome
        except HostsGoneError as error:
            error.advice = f"{error.advice} To continue with the trials made so far, add: --resume {self.record}"
            raise

    def interrupted(self, before: str) -> Trouble:
        """The error after an interrupt. `before` names the unfinished work."""
        return Trouble("Interrupted", f"interrupted before {before}", f"To continue, add: --resume {self.record}")


@dataclass(frozen=True, slots=True)
class Trouble:
    """The `error` of a JSON document: why a verb ends with an exit code other than 0."""

    type: str
    message: str
    advice: str


def document(verdict: msgspec.Struct, trouble: Trouble | None, **more: Any) -> dict[str, Any]:
    """The document that --json prints: the verdict, the verb's own values (paths become text), and the error."""
    told: dict[str, Any] = msgspec.to_builtins(verdict)
    told |= {name: str(value) if isinstance(value, Path) else value for name, value in more.items()}
    return told if trouble is None else told | {"error": dataclasses.asdict(trouble)}


def failure(outcome: Outcome) -> dict[str, Any]:
    """The `error` of the JSON document, if the script failed or was stopped."""
    told: dict[str, Any] = {"exit_code": outcome.exit_code}
    if outcome.exit_code:
        told["error"] = {
            "type": "Interrupted" if outcome.interrupted else "ScriptFailed",
            "message": outcome.message or f"the script ended with exit code {outcome.exit_code}",
            "advice": "Read the workers' output in the record: log.rank*.txt.",
        }
    return told


def write_verdict(record: Path, verdict: msgspec.Struct) -> None:
    """Writes verdict.json. If that fails, such as on a full disk: see `record.stopping`."""
    path = record / "verdict.json"
    try:
        write_file(path, msgspec.json.format(msgspec.json.encode(verdict)))
    except OSError as error:
        stop(path, error)


def finish(session: Session, told: dict[str, Any], *, code: int, plots: Sequence[Path | None]) -> NoReturn:
    """Prints why the verb has failed, also when quiet, and the paths of the plots and the record; prints the document
    with --json, and ends the verb."""
    if (error := told.get("error")) and code:
        ended = "stopped" if error["type"] == "Interrupted" else "failed"
        stderr().print(f"{ended}: {error['message']}", style="bold red" if ended == "failed" else "", soft_wrap=True)
        stderr().print(f"  {error['advice']}", soft_wrap=True)
    if not session.quiet:
        console = results(json=session.json)
        console.print()
        for plot in plots:
            if plot is not None:
                console.print(f"plot:   {plot}", soft_wrap=True)
        console.print(f"record: {session.record}", soft_wrap=True)
    if session.json:
        session.print_document(told)
    raise typer.Exit(code)


class Line:
    """One per series. Without a terminal there is no bar, and each result is printed as one line."""

    def __init__(self, console: Console, budget: Budget, *, quiet: bool) -> None:
        self._console, self._budget, self._quiet = console, budget, quiet
        self._told: set[str] = set()
        self._what = ""
        self._trial = 0  # number of the current trial
        self.trials: int | None = None  # of the series, if that is known
        self._bar = progress_bar(console, quiet=quiet)
        self._task = self._bar.add_task("starting", total=budget.seconds)

    def __enter__(self) -> Line:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start(self, what: str, *, trial: bool = False) -> None:
        """Shows what runs now. `trial`: it is the next trial of the series."""
        self._trial += trial
        self._what = f"{self._place()}: {what}" if trial else what
        self._update(self._what)

    def event(self, event: Event) -> None:
        if isinstance(event, launch_events.Progress) and event.steps:
            step = min(event.steps.items())[1].step
            self._update(f"{self._what}, step {step:,}")
        if isinstance(event, Notice | Stall) and event.text not in self._told:
            self._told.add(event.text)
            self._console.print(f"paceline: {event.text}", style="yellow", soft_wrap=True)

    def say(self, text: str) -> None:
        """Prints the result of the current trial, if there is no bar."""
        if not self._quiet and not self._console.is_terminal:
            place = f"{self._place()}{self._left()}: " if self._trial else ""
            self._console.print(f"paceline: {place}{text}", soft_wrap=True)

    def _place(self) -> str:
        known = self.trials is not None and self.trials >= self._trial
        return f"trial {self._trial}" + (f" of {self.trials}" if known else "")

    def _update(self, text: str) -> None:
        """Without a budget, the bar counts trials."""
        counts = self.trials is not None and self._budget.seconds is None
        self._bar.update(
            self._task,
            description=text,
            total=self.trials if counts else self._budget.seconds,
            completed=self._trial - 1 if counts else self._budget.spent,
        )

    def _left(self) -> str:
        """The time left: the budget's, or that of the trials to come, if they take as long as those before."""
        ends = []
        if self.trials is not None:
            ends.append(self._budget.spent / self._trial * max(self.trials - self._trial, 0))
        if self._budget.seconds is not None:
            ends.append(max(self._budget.seconds - self._budget.spent, 0.0))
        return f", at most {seconds(min(ends))} left" if ends else ""
