"""`paceline sweep`: measures throughput by batch size, up to the largest batch that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from paceline.cli import options, series
from paceline.cli.help import verb
from paceline.cli.hosts import on_hosts
from paceline.cli.script_options import ScriptOptions, runs_scripts
from paceline.cli.session import Session
from paceline.cli.terminal import plotted
from paceline.errors import UsageError
from paceline.launch import Event, Notice
from paceline.mods import catalog
from paceline.reports.sweep import advice, charts, complaint, report
from paceline.reports.terminal import show
from paceline.topology import discover
from paceline.trials.core.bench import Measured
from paceline.trials.sweep.search import OnBench, Sweep, Verdict, judge
from paceline.units import rate

ENOUGH = 1.0  # seconds of steady steps after which a trial ends

Workers = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--workers",
        metavar="N",
        min=1,
        help="Number of workers.",
        show_default="1; all workers of several hosts",
        rich_help_panel=options.HOW,
    ),
]
From = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="N",
        min=1,
        help="First batch size, in samples per step.",
        show_default="the script's batch",
        rich_help_panel=options.HOW,
    ),
]
To = Annotated[
    int | None,
    typer.Option(
        "--to",
        metavar="N",
        min=1,
        help="Largest batch size to try.",
        show_default="the largest that fits",
        rich_help_panel=options.HOW,
    ),
]
ToTheEnd = Annotated[
    bool,
    typer.Option(
        "--to-the-end",
        help="Continue after throughput stops growing, until memory or data runs out.",
        rich_help_panel=options.HOW,
    ),
]
Repeat = Annotated[
    int,
    typer.Option(
        "--repeat",
        metavar="N",
        min=1,
        help="Number of times to measure the batches near the best.",
        rich_help_panel=options.HOW,
    ),
]
Steps = Annotated[
    int, typer.Option("--steps", metavar="K", min=10, help="Step limit of a trial.", rich_help_panel=options.HOW)
]


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(
        "sweep",
        cls=verb(
            "paceline sweep train.py --epochs 10",
            "paceline sweep --from 8 --memory-limit 2GB train.py",
            "paceline sweep --hosts a:4,b:4 train.py",
        ),
        context_settings=options.SCRIPT_LAST,
    )(sweep)


@runs_scripts
def sweep(
    context: typer.Context,
    asked: ScriptOptions,
    workers: Workers = None,
    start: From = None,
    to: To = None,
    to_the_end: ToTheEnd = False,
    repeat: Repeat = 2,
    steps: Steps = 1000,
    memory_limit: series.MemoryLimit = None,
    budget: series.BudgetOption = None,
    mod: options.Mods = None,
    resume: series.Resume = None,
    record: options.RecordParent = options.RECORDS,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    session = Session.of(context, json=json)
    settings = replace(
        asked.settings(),
        steps=steps,
        enough=ENOUGH,
        mods=parse_mods(mod or []),
        memory_limit=series.parse_bytes(memory_limit),
    )
    if start is not None and to is not None and to < start:
        raise UsageError(
            f"--from {start} is larger than --to {to}.", advice=f"Type it like this: --from {to} --to {start}"
        )
    settings = replace(settings, workers=on_hosts(session, asked, settings, workers, 1, quiet=quiet))
    course = series.Series.begin(
        session, settings, asked, host=discover(), budget=budget, parent=record, resume=resume, quiet=quiet
    )
    verdict, code = carry_out(course, start=start, to=to, to_the_end=to_the_end, repeat=repeat)
    series.write_verdict(course.record, verdict)
    plot = plotted(charts(verdict), course.record / "plots" / "sweep.svg", asked.script)
    if verdict.largest is not None and not quiet:
        show(course.results, report(verdict))
    told = series.document(verdict, trouble(verdict, course) if code else None, plot=plot)
    series.finish(session, course.results, told, code=code, plots=[plot], quiet=quiet)


def parse_mods(texts: list[str]) -> tuple[str, ...]:
    """The user's mods, which apply to every trial. The sweep itself sets the batch."""
    asked = catalog.parse(texts)
    if any(one.entry.name == "batch" for one in asked):
        raise UsageError("--mod batch: the sweep sets the batch itself.", advice="Use --from and --to instead.")
    catalog.parse([*texts, "batch=x1:none"])
    return tuple(str(one) for one in asked)


def carry_out(
    course: series.Series, *, start: int | None, to: int | None, to_the_end: bool, repeat: int
) -> tuple[Verdict, int]:
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

    measure = OnBench(course.bench(label=label, on_event=on_event, on_result=on_result), start)
    walk = Sweep(measure, course.budget, start=start, to=to, repeat=repeat, to_the_end=to_the_end)
    with course.running() as outcome:
        walk.run()
        outcome.exit_code = int(not walk.trials or walk.ceiling.broken)
    settings = course.settings
    verdict = judge(
        walk, workers=settings.workers, mods=settings.mods, ask=measure.value, interrupted=outcome.interrupted
    )
    return verdict, outcome.exit_code


def trouble(verdict: Verdict, course: series.Series) -> series.Trouble:
    """Why the exit code is not 0."""
    if verdict.interrupted:
        return course.interrupted("the sweep had ended")
    if verdict.details and verdict.details != verdict.why:
        course.console.print(verdict.details, style="red", soft_wrap=True)
    return series.Trouble("ScriptFailed", complaint(verdict), advice(verdict))
