"""`paceline sweep`: measures throughput by batch size, up to the largest batch that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.cli import series
from paceline.cli.hosts import on_hosts
from paceline.cli.series import Series, SeriesOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted
from paceline.cli.verb import alone, verb
from paceline.errors import UsageError
from paceline.launch import Event, Notice
from paceline.mods import catalog
from paceline.options import option
from paceline.reports.sweep import advice, charts, complaint, report
from paceline.reports.terminal import show
from paceline.settings import RunSettings
from paceline.topology import discover
from paceline.trials.core.bench import Measured
from paceline.trials.sweep.search import OnBench, Sweep, Verdict, judge
from paceline.units import rate

ENOUGH = 1.0  # seconds of steady steps after which a trial ends

app = alone()


@dataclass(frozen=True, kw_only=True)
class SweepOptions(SeriesOptions):
    workers: int | None = option(
        None, "Number of workers.", "N", names="-n --workers", least=1, usual="1; all workers of several hosts"
    )
    start: int | None = option(
        None, "First batch size, in samples per step.", "N", names="--from", least=1, usual="the script's batch"
    )
    to: int | None = option(None, "Largest batch size to try.", "N", least=1, usual="the largest that fits")
    to_the_end: bool = option(False, "Continue after throughput stops growing, until memory or data runs out.")
    repeat: int = option(2, "Number of times to measure the batches near the best.", "N", least=1)
    steps: int = option(1000, "Step limit of a trial.", "K", least=10)


@verb(
    app,
    "paceline sweep train.py --epochs 10",
    "paceline sweep --from 8 --memory-limit 2GB train.py",
    "paceline sweep --hosts a:4,b:4 train.py",
)
def sweep(session: Session, settings: RunSettings, asked: SweepOptions) -> None:
    check_mods(settings.mods)
    settings = replace(settings, steps=asked.steps, enough=ENOUGH)
    start, to = asked.start, asked.to
    if start is not None and to is not None and to < start:
        raise UsageError(
            f"--from {start} is larger than --to {to}.", advice=f"Type it like this: --from {to} --to {start}"
        )
    settings = replace(settings, workers=on_hosts(session, asked, settings, asked.workers, 1))
    course = Series.begin(session, settings, asked, host=discover())
    verdict, code = carry_out(course, asked)
    series.write_verdict(course.record, verdict)
    plot = plotted(charts(verdict), course.record / "plots" / "sweep.svg", settings.script)
    if verdict.largest is not None and not session.quiet:
        show(course.results, report(verdict))
    told = series.document(verdict, trouble(verdict, course) if code else None, plot=plot)
    series.finish(session, told, code=code, plots=[plot])


def check_mods(mods: Sequence[str]) -> None:
    """UsageError for mods that cannot apply to every trial: the sweep itself sets the batch."""
    if any(one.entry.name == "batch" for one in catalog.parse(mods)):
        raise UsageError("--mod batch: the sweep sets the batch itself.", advice="Use --from and --to instead.")
    catalog.parse([*mods, "batch=x1:none"])


def carry_out(course: Series, asked: SweepOptions) -> tuple[Verdict, int]:
    """Runs the trials. Writes run.json even after an error or an interrupt. Returns the verdict and the exit code."""

    def label(name: str) -> str:
        return name.rpartition(".")[0].replace("=", " ")

    def on_event(event: Event) -> None:
        if not (isinstance(event, Notice) and event.mod == "batch"):  # the mod repeats its notice in every trial
            course.line.event(event)

    def on_result(measured: Measured) -> None:
        if measured.ok:
            course.line.say(f"batch {measured.batch:,}: {rate(measured.samples_per_s)} samples/s")
        elif walk.trials:  # if no trial succeeded, this message is shown at the end
            course.line.say(f"{label(measured.name)}: {measured.message}")

    measure = OnBench(course.bench(label=label, on_event=on_event, on_result=on_result), asked.start)
    bounds = {"start": asked.start, "to": asked.to}
    walk = Sweep(measure, course.budget, **bounds, repeat=asked.repeat, to_the_end=asked.to_the_end)
    with course.running() as outcome:
        walk.run()
        outcome.exit_code = int(not walk.trials or walk.ceiling.broken)
    settings = course.settings
    verdict = judge(
        walk, workers=settings.workers, mods=settings.mods, ask=measure.value, interrupted=outcome.interrupted
    )
    return verdict, outcome.exit_code


def trouble(verdict: Verdict, course: Series) -> series.Trouble:
    """Why the exit code is not 0."""
    if verdict.interrupted:
        return course.interrupted("the sweep had ended")
    if verdict.details and verdict.details != verdict.why:
        course.console.print(verdict.details, style="red", soft_wrap=True)
    return series.Trouble("ScriptFailed", complaint(verdict), advice(verdict))
