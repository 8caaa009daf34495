"""`paceline converge`: accuracy of large-batch techniques on N emulated workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.cli import series
from paceline.cli.hosts import on_hosts
from paceline.cli.series import Series, SeriesOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted
from paceline.cli.verb import alone, verb
from paceline.errors import ScriptError, UsageError
from paceline.launch import Event, Notice
from paceline.mods import catalog
from paceline.options import option
from paceline.record import read_run
from paceline.reports import converge as reports
from paceline.reports.terminal import show
from paceline.settings import RunSettings, SharpnessSettings
from paceline.topology import discover
from paceline.trials.converge.accuracy import compile_metric
from paceline.trials.converge.series import ALONE, Converge, Verdict, judge, parse_techniques
from paceline.trials.converge.trials import OnBench, failure
from paceline.units import percent

app = alone()


@dataclass(frozen=True, kw_only=True)
class ConvergeOptions(SeriesOptions):
    emulate: int = option(8, "Number of workers to emulate.", "N", least=2)
    workers: int | None = option(
        None,
        "Number of real workers that compute the emulated ones.",
        "N",
        names="-n --workers",
        least=1,
        usual="1; all workers of several hosts",
    )
    seeds: int = option(3, "Runs per technique, each from another seed.", "K", least=1)
    metric: str | None = option(
        None,
        "Pattern of the accuracy in the script's output; its first group is the number. The last match counts.",
        "REGEX",
        usual="finds test accuracy, val_acc, acc: …",
    )
    techniques: str | None = option(
        None,
        "Techniques to try: lamb,auto. Or your own mods, joined by +: ghost_bn=16+lr_scale=8.",
        "LIST",
        usual="lr_scale,warmup,ghost_bn,lars,lamb,auto",
    )
    target: float | None = option(
        None,
        "Accuracy to reach: count epochs and time until then. Example: 0.6.",
        "ACCURACY",
        least=0.0,
        most=1.0,
        usual="accuracy of one worker",
    )
    sharpness: bool = option(
        False,
        "Measure the sharpness of each solution: largest Hessian eigenvalue, loss under perturbed weights, loss "
        "along the line from the one-worker solution.",
    )


@verb(
    app,
    "paceline converge --emulate 8 train.py --epochs 12",
    "paceline converge --emulate 8 --techniques lamb,auto train.py",
    "paceline converge --emulate 8 --sharpness train.py",
)
def converge(session: Session, settings: RunSettings, asked: ConvergeOptions) -> None:
    tried = parse_techniques(asked.techniques)
    check_mods(settings.mods)
    settings = replace(settings, sharpness=SharpnessSettings() if asked.sharpness else None)
    number, emulate = on_hosts(session, asked, settings, asked.workers, 1), asked.emulate
    if emulate % number:
        raise UsageError(
            f"-n {number}: {emulate} emulated workers cannot be divided evenly among {number} real ones.",
            advice=f"Give -n a divisor of {emulate}, or change --emulate.",
        )
    settings = replace(settings, workers=number)
    pattern = compile_metric(asked.metric) if asked.metric is not None else None
    course = Series.begin(session, settings, asked, host=discover())
    measure = OnBench(pattern)
    walk = Converge(measure, workers=emulate, seeds=asked.seeds, techniques=tried)
    verdict, code = carry_out(course, measure, walk, target=asked.target)
    series.write_verdict(course.record, verdict)
    plot = plotted(reports.accuracy(verdict), course.record / "plots" / "converge.svg", settings.script)
    line = plotted(reports.loss_lines(verdict), course.record / "plots" / "line.svg", settings.script)
    show(course.results, reports.report(verdict, read_run(course.record)), quiet=session.quiet)
    told = series.document(verdict, trouble(verdict, course) if code else None, plot=plot, line_plot=line)
    for row, shown in zip(told["rows"], verdict.rows, strict=True):
        row["shown"] = reports.accuracy_words(shown)
    series.finish(session, told, code=code, plots=[plot, line])


def check_mods(mods: Sequence[str]) -> None:
    """UsageError for mods that cannot apply to every trial."""
    if any(one.entry.name in ("batch", "emulate", "workers") for one in catalog.parse(mods)):
        raise UsageError(
            "--mod: batch, emulate and workers are set by converge itself.", advice="Use --emulate and -n instead."
        )


def carry_out(course: Series, measure: OnBench, walk: Converge, *, target: float | None) -> tuple[Verdict, int]:
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


def trouble(verdict: Verdict, course: Series) -> series.Trouble:
    """Why the exit code is not 0."""
    told = course.interrupted("all trials were made")
    return told if verdict.interrupted else series.Trouble("ScriptFailed", "nothing was measured", told.advice)
