"""`paceline converge`: accuracy of large-batch techniques on N emulated workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from paceline.cli import options, series
from paceline.cli.help import verb
from paceline.cli.hosts import on_hosts
from paceline.cli.script_options import ScriptOptions, runs_scripts
from paceline.cli.session import Session
from paceline.cli.terminal import plotted
from paceline.errors import ScriptError, UsageError
from paceline.launch import Event, Notice
from paceline.mods import catalog
from paceline.record import read_run
from paceline.reports import converge as reports
from paceline.reports.terminal import show
from paceline.settings import SharpnessSettings
from paceline.topology import discover
from paceline.trials.converge.accuracy import compile_metric
from paceline.trials.converge.series import ALONE, Converge, Verdict, judge, parse_techniques
from paceline.trials.converge.trials import OnBench, failure
from paceline.units import percent

Emulate = Annotated[
    int,
    typer.Option("--emulate", metavar="N", min=2, help="Number of workers to emulate.", rich_help_panel=options.HOW),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--workers",
        metavar="N",
        min=1,
        help="Number of real workers that compute the emulated ones.",
        show_default="1; all workers of several hosts",
        rich_help_panel=options.HOW,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds", metavar="K", min=1, help="Runs per technique, each from another seed.", rich_help_panel=options.HOW
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="REGEX",
        help="Pattern of the accuracy in the script's output; its first group is the number. The last match counts.",
        show_default="finds test accuracy, val_acc, acc: …",
        rich_help_panel=options.HOW,
    ),
]
Techniques = Annotated[
    str | None,
    typer.Option(
        "--techniques",
        metavar="LIST",
        help="Techniques to try: lamb,auto. Or your own mods, joined by +: ghost_bn=16+lr_scale=8.",
        show_default="lr_scale,warmup,ghost_bn,lars,lamb,auto",
        rich_help_panel=options.HOW,
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        "--target",
        metavar="ACCURACY",
        min=0.0,
        max=1.0,
        help="Accuracy to reach: count epochs and time until then. Example: 0.6.",
        show_default="accuracy of one worker",
        rich_help_panel=options.HOW,
    ),
]
Sharpness = Annotated[
    bool,
    typer.Option(
        "--sharpness",
        help="Measure the sharpness of each solution: largest Hessian eigenvalue, loss under perturbed weights, loss "
        "along the line from the one-worker solution.",
        rich_help_panel=options.HOW,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(
        "converge",
        cls=verb(
            "paceline converge --emulate 8 train.py --epochs 12",
            "paceline converge --emulate 8 --techniques lamb,auto train.py",
            "paceline converge --emulate 8 --sharpness train.py",
        ),
        context_settings=options.SCRIPT_LAST,
    )(converge)


@runs_scripts
def converge(
    context: typer.Context,
    asked: ScriptOptions,
    emulate: Emulate = 8,
    workers: Workers = None,
    seeds: Seeds = 3,
    metric: Metric = None,
    techniques: Techniques = None,
    target: Target = None,
    sharpness: Sharpness = False,
    budget: series.BudgetOption = None,
    mod: options.Mods = None,
    resume: series.Resume = None,
    record: options.RecordParent = options.RECORDS,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    session = Session.of(context, json=json)
    tried = parse_techniques(techniques)
    settings = replace(
        asked.settings(),
        mods=parse_mods(mod or []),
        sharpness=SharpnessSettings() if sharpness else None,
    )
    number = on_hosts(session, asked, settings, workers, 1, quiet=quiet)
    if emulate % number:
        raise UsageError(
            f"-n {number}: {emulate} emulated workers cannot be divided evenly among {number} real ones.",
            advice=f"Give -n a divisor of {emulate}, or change --emulate.",
        )
    settings = replace(settings, workers=number)
    pattern = compile_metric(metric) if metric is not None else None
    course = series.Series.begin(
        session, settings, asked, host=discover(), budget=budget, parent=record, resume=resume, quiet=quiet
    )
    measure = OnBench(pattern)
    walk = Converge(measure, workers=emulate, seeds=seeds, techniques=tried)
    verdict, code = carry_out(course, measure, walk, target=target)
    series.write_verdict(course.record, verdict)
    plot = plotted(reports.accuracy(verdict), course.record / "plots" / "converge.svg", asked.script)
    line = plotted(reports.loss_lines(verdict), course.record / "plots" / "line.svg", asked.script)
    show(course.results, reports.report(verdict, read_run(course.record)), quiet=quiet)
    told = series.document(verdict, trouble(verdict, course) if code else None, plot=plot, line_plot=line)
    for row, shown in zip(told["rows"], verdict.rows, strict=True):
        row["shown"] = reports.accuracy_words(shown)
    series.finish(session, course.results, told, code=code, plots=[plot, line], quiet=quiet)


def parse_mods(texts: list[str]) -> tuple[str, ...]:
    """The user's mods, which apply to every trial."""
    asked = catalog.parse(texts)
    if any(one.entry.name in ("batch", "emulate", "workers") for one in asked):
        raise UsageError(
            "--mod: batch, emulate and workers are set by converge itself.", advice="Use --emulate and -n instead."
        )
    return tuple(str(one) for one in asked)


def carry_out(course: series.Series, measure: OnBench, walk: Converge, *, target: float | None) -> tuple[Verdict, int]:
    """Runs the trials. Writes run.json even after an error or an interrupt. Returns the verdict and the exit code."""

    def on_event(event: Event) -> None:
        measure.event(event)
        if not isinstance(event, Notice):  # mods repeat their notices in every trial; the trials' records hold them
            course.line.event(event)

    def told(name: str, mods: tuple[str, ...], seed: int) -> Any:
        trial = measure(name, mods, seed)
        if not trial.unfinished:
            said = "no accuracy" if trial.accuracy is None else percent(trial.accuracy)
            said += f", diverged at step {trial.diverged}" if trial.diverged is not None else ""
            course.line.say(f"{name}: {trial.trouble or said}")
        return trial

    measure.bench = course.bench(label=lambda name: name.replace(".seed", ", seed "), on_event=on_event)
    walk.measure = told
    course.line.trials = walk.planned
    with course.running() as outcome:
        walk.run()
        alone = walk.trials.get(ALONE, [])
        outcome.exit_code = int(not alone or bool(alone[0].trouble))
    if walk.trials.get(ALONE) and walk.trials[ALONE][0].trouble:
        why = walk.trials[ALONE][0].trouble
        if (report := failure(measure.bench, "oneworker.seed0")) and report != why:
            course.console.print(report, style="red", soft_wrap=True)
        raise ScriptError(
            f"{course.settings.script} on one worker, without any technique: {why}",
            advice="Check that the script runs: paceline run -n 1 " + course.settings.script,
        )
    return judge(walk, target=target, interrupted=outcome.interrupted), outcome.exit_code


def trouble(verdict: Verdict, course: series.Series) -> series.Trouble:
    """Why the exit code is not 0."""
    told = course.interrupted("all trials were made")
    return told if verdict.interrupted else series.Trouble("ScriptFailed", "nothing was measured", told.advice)
