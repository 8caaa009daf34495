"""`paceline sweep`: which batch size is fast enough, and which is too large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from paceline.cli.shared import options, series
from paceline.cli.shared.example_first import verb
from paceline.cli.shared.script_options import AskedWithView, runs_scripts
from paceline.cli.shared.session import Session
from paceline.cli.shared.terminal import plotted, stderr
from paceline.cli.tables.sweep import advice, complaint, show_verdict
from paceline.errors import UsageError
from paceline.launch import Event, Notice, check
from paceline.mods import catalog
from paceline.record.private import write_file
from paceline.settings import RunSettings
from paceline.topology import discover
from paceline.trials.core.bench import Bench, Budget, Measured
from paceline.trials.sweep import search as trials
from paceline.trials.sweep.search import OnBench, Sweep, Verdict
from paceline.units import rate

ENOUGH = 1.0  # seconds of settled steps that make a trial

Workers = Annotated[
    int, typer.Option("-n", "--workers", metavar="N", min=1, help="How many workers.", rich_help_panel=options.HOW)
]
From = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="N",
        min=1,
        help="The first batch.",
        show_default="the script's own",
        rich_help_panel=options.HOW,
    ),
]
To = Annotated[
    int | None,
    typer.Option(
        "--to",
        metavar="N",
        min=1,
        help="The last batch, if nothing ends it before.",
        show_default="the ceiling",
        rich_help_panel=options.HOW,
    ),
]
ToTheEnd = Annotated[
    bool,
    typer.Option(
        "--to-the-end",
        help="Go on although nothing is gained any more, until memory or data ends.",
        rich_help_panel=options.HOW,
    ),
]
Repeat = Annotated[
    int,
    typer.Option(
        "--repeat", metavar="N", min=1, help="Rounds of the batches near the best.", rich_help_panel=options.HOW
    ),
]
Steps = Annotated[
    int, typer.Option("--steps", metavar="K", min=1, help="Steps of a trial at most.", rich_help_panel=options.HOW)
]


def add_to(app: typer.Typer) -> None:
    """Makes the verb known."""
    app.command(
        "sweep",
        cls=verb("paceline sweep train.py --epochs 10", "paceline sweep --from 8 --memory-limit 2GB train.py"),
        context_settings=options.SCRIPT_LAST,
    )(sweep)


@runs_scripts
def sweep(
    context: typer.Context,
    asked: AskedWithView,
    workers: Workers = 1,
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
    """Measures throughput against batch size, up to the ceiling, and names the knee."""
    session = Session.of(context, json=json)
    settings = replace(
        asked.settings(),
        workers=workers,
        steps=steps,
        enough=ENOUGH,
        mods=parse_mods(mod or []),
        memory_limit=series.parse_bytes(memory_limit),
    )
    if start is not None and to is not None and to < start:
        raise UsageError(f"Asked for batches from {start} to {to}.", advice=f"--from {to} --to {start}")
    time = series.parse_time(budget)
    # Before the record's folder is made: a mistake leaves nothing behind.
    check(settings, discover(), oversubscribe=asked.oversubscribe)
    session.record, settings = series.open_record("sweep", settings, parent=record, resume=resume, seed=asked.seed)
    console = stderr()
    verdict, code = carry_out(
        session,
        settings,
        Budget(time),
        start=start,
        to=to,
        to_the_end=to_the_end,
        repeat=repeat,
        console=console,
        quiet=quiet,
    )
    write_file(session.record / "verdict.json", msgspec.json.format(msgspec.json.encode(verdict)))
    plot = draw(verdict, session.record, asked.script) if verdict.knee is not None else None
    show_verdict(console, verdict, quiet=quiet)
    if not quiet:
        console.print()
        if plot:
            console.print(f"plot:   {plot}", soft_wrap=True)
        console.print(f"record: {session.record}", soft_wrap=True)
    if json:
        session.print_document(document(verdict, session.record, plot, code))
    raise typer.Exit(code)


def parse_mods(texts: list[str]) -> tuple[str, ...]:
    """What goes with the batch, which is the sweep's own."""
    asked = catalog.parse(texts)
    if any(one.entry.name == "batch" for one in asked):
        raise UsageError("Asked for --mod batch, which is what a sweep changes.", advice="Use --from and --to.")
    catalog.parse([*texts, "batch=x1:none"])
    return tuple(str(one) for one in asked)


def carry_out(
    session: Session,
    settings: RunSettings,
    budget: Budget,
    *,
    start: int | None,
    to: int | None,
    to_the_end: bool,
    repeat: int,
    console: Console,
    quiet: bool,
) -> tuple[Verdict, int]:
    """Runs the trials; leaves run.json whatever happens. Gives the verdict and the exit code."""
    assert session.record is not None
    line = series.Line(console, budget, quiet=quiet)

    def on_start(name: str) -> None:
        line.start(name.rpartition(".")[0].replace("=", " "))

    def on_event(event: Event) -> None:
        if not (isinstance(event, Notice) and event.mod == "batch"):  # what the mod says at every trial
            line.event(event)

    def on_result(measured: Measured) -> None:
        if measured.ok:
            line.say(f"batch {measured.batch:,}: {rate(measured.samples_per_s)} samples/s")
        elif walk.trials:  # else it is all that there is to tell, at the end
            line.say(f"{measured.name.rpartition('.')[0].replace('=', ' ')}: {measured.message}")

    bench = Bench(
        settings,
        zygote=session.workers(),
        record=session.record,
        budget=budget,
        verb="sweep",
        on_event=on_event,
        on_start=on_start,
        on_result=on_result,
    )
    measure = OnBench(bench, start)
    walk = Sweep(measure, budget, start=start, to=to, repeat=repeat, to_the_end=to_the_end)
    with series.recorded(session.record, "sweep", settings) as outcome:
        with line:
            walk.run()
        outcome.exit_code = int(not walk.trials or walk.ceiling.broken)
    verdict = trials.judge(
        walk, workers=settings.workers, mods=settings.mods, ask=measure.value, interrupted=outcome.interrupted
    )
    return verdict, outcome.exit_code


def draw(verdict: Verdict, record: Path, script: str) -> Path | None:
    """The plot, in the record."""
    from paceline.trials.sweep.plot import draw as draw_plot

    path = record / "plots" / "sweep.svg"
    return plotted(lambda: draw_plot(verdict, path, title=Path(script).name), path)


def document(verdict: Verdict, record: Path, plot: Path | None, code: int) -> dict[str, Any]:
    """What --json prints."""
    told: dict[str, Any] = msgspec.to_builtins(verdict)
    told["plot"] = str(plot) if plot else None
    if code:
        told["error"] = {
            "type": "Interrupted" if verdict.interrupted else "ScriptFailed",
            "message": "interrupted before the sweep had ended" if verdict.interrupted else complaint(verdict),
            "advice": f"Go on with it: --resume {record}" if verdict.interrupted else advice(verdict),
        }
    return told
