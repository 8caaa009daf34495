"""`paceline fit`: finds changes with which a script fits into memory, and measures what each saves and takes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cli import series
from paceline.cli.series import Series, SeriesOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted
from paceline.cli.verb import alone, verb
from paceline.errors import UsageError
from paceline.launch import Event, Notice
from paceline.options import option
from paceline.record import read_run
from paceline.reports.fit import advice, charts, complaint, report
from paceline.reports.report import Command
from paceline.reports.terminal import show
from paceline.settings import RunSettings
from paceline.topology import discover
from paceline.trials.core.bench import Measured
from paceline.trials.fit.search import EXACTNESS, Fit, Verdict
from paceline.trials.tune.command import command
from paceline.units import rate, size

ENOUGH = 1.0  # seconds of steady steps after which a trial ends

app = alone()


@dataclass(frozen=True, kw_only=True)
class FitOptions(SeriesOptions):
    workers: int | None = option(None, "Number of workers.", "N", names="-n --workers", least=1, usual="1")
    allow: tuple[str, ...] = option(
        (), "Also try what changes the numbers: bf16, micro-batches with batch norm. May be repeated.", "exactness"
    )
    steps: int = option(1000, "Step limit of a trial.", "K", least=10)


@verb(app, "paceline fit train.py", "paceline fit --gpu 24GB train.py", "paceline fit --allow exactness train.py")
def fit(session: Session, settings: RunSettings, asked: FitOptions) -> None:
    for allowed in asked.allow:
        if allowed != EXACTNESS:
            raise UsageError(f"--allow {allowed}: only exactness can be allowed.", advice=f"Type: --allow {EXACTNESS}")
    host = discover()
    settings = replace(settings, steps=asked.steps, enough=ENOUGH, workers=asked.workers or 1)
    course = Series.begin(session, settings, asked, host=host)
    verdict, code = carry_out(course, asked.allow, gpus=len(host.gpus))
    series.write_verdict(course.record, verdict)
    typed = kept(verdict, course.settings)
    plot = plotted(charts(verdict), course.record / "plots" / "fit.svg", settings.script)
    if not session.quiet:
        about = Command("to run it so, type", typed) if typed else None
        show(course.results, report(verdict, typed=about))
    told = series.document(verdict, trouble(verdict, course) if code else None, plot=plot, command=typed)
    series.finish(session, told, code=code, plots=[plot])


def carry_out(course: Series, allow: Sequence[str], *, gpus: int) -> tuple[Verdict, int]:
    """Runs the trials. Writes run.json even after an error or an interrupt. Returns the verdict and the exit code."""

    def on_event(event: Event) -> None:
        if not (isinstance(event, Notice) and event.mod):  # what a mod says of itself is in the table
            course.line.event(event)

    def on_result(measured: Measured) -> None:
        said = f"{rate(measured.samples_per_s)} samples/s, {size(measured.memory)}" if measured.ok else measured.message
        course.line.say(f"{measured.name}: {said}")

    bench = course.bench(label=lambda name: name, on_event=on_event, on_result=on_result)
    settings = course.settings
    gpus = gpus if settings.strategy == "mirrored" else 0
    search = Fit(bench, settings.memory_limit, gpus, settings.mods, allow)
    with course.running() as outcome:
        search.carry_out()
        outcome.exit_code = int(search.found.chosen is None)
    found = search.found
    found.interrupted = outcome.interrupted
    if found.failed and (said := details(found.failed)) and said != found.problem:
        course.console.print(said, style="red", soft_wrap=True)
    return found, outcome.exit_code


def details(record: str) -> str:
    """The full error of a failed trial."""
    outcome = read_run(Path(record)).outcome
    return outcome.message if outcome is not None else ""


def kept(verdict: Verdict, settings: RunSettings) -> str:
    """The command with which the script fits; empty if there is none, or if it fits as it is."""
    if verdict.chosen is None or verdict.fits:
        return ""
    row = verdict.rows[verdict.chosen]
    changed = replace(settings, strategy=row.strategy or settings.strategy, workers=row.workers)
    options = ["-n", str(row.workers)] if row.workers > 1 else []
    return shlex.join(command(changed, *options, *(word for mod in row.change for word in ("--mod", mod))))


def trouble(verdict: Verdict, course: Series) -> series.Trouble:
    """Why the exit code is not 0."""
    if verdict.interrupted:
        return course.interrupted("the search had ended")
    return series.Trouble("DoesNotFit" if not verdict.problem else "ScriptFailed", complaint(verdict), advice(verdict))
