"""`paceline run`: runs an unmodified script on N workers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import typer
from msgspec import structs
from rich.console import Console

from paceline.cli.command_words import another_verb
from paceline.cli.hosts import cluster_of
from paceline.cli.live import LiveLine
from paceline.cli.options import ScriptOptions, default_workers
from paceline.cli.series import failure
from paceline.cli.session import Session
from paceline.cli.terminal import stderr
from paceline.cli.verb import alone, verb
from paceline.errors import RecordError, UsageError
from paceline.launch import check, launch
from paceline.launch.cluster.controller import launch_on
from paceline.launch.tensorboard import prove_board, showing
from paceline.mods import catalog
from paceline.options import LASTING, OUTPUT, option, read_time
from paceline.record import read_run, write_run
from paceline.record.phases import PHASES
from paceline.record.pipelines import most_waited_for, read_pipelines
from paceline.record.schema import Outcome
from paceline.record.timeline import write_trace
from paceline.reports.ending import ending, verdict_of, wall_clock_line, wall_clock_of
from paceline.reports.figure_text import figures_document, slowest
from paceline.reports.noise import figure, find_noise, noise_document
from paceline.reports.profile import time_table
from paceline.reports.report import Sentence
from paceline.reports.terminal import show_table, tell
from paceline.settings import Launcher, RunSettings, SaveSettings
from paceline.topology import discover
from paceline.trials.core.run_advice import advise
from paceline.trials.core.summary import Summary, summarize
from paceline.trials.core.wall_clock import WallClock
from paceline.trials.tune.candidates import together
from paceline.trials.tune.preset import find_preset
from paceline.units import count, percent, rate, seconds

MEASURED = 10  # steps: the times of a run that failed before are those of its beginning

SAVES = "paceline-saves"  # the folder of all saves, where nothing else is given
app = alone()


@dataclass(frozen=True, kw_only=True)
class RunOptions(ScriptOptions):
    preset: str | None = option(None, "Apply the mods that `paceline tune` found for this script.", "tuned|RECORD")
    timeline: Path | None = option(None, "Write a timeline of phases and gradient buckets for Perfetto.", "FILE")
    emulate: int | None = option(None, "Emulate N workers: N× batch, per-worker batch norm.", "N", least=1)
    tensorboard: Path | None = option(
        None, "Folder for TensorBoard logs: loss, samples/s and the parts of each step.", "DIR", panel=OUTPUT
    )


@dataclass(frozen=True, kw_only=True)
class LastingOptions:
    PANEL: ClassVar = LASTING
    elastic: str | None = option(
        None,
        "Go on without workers that are killed, with the same numbers, as long as MIN are left. With MAX, start again "
        "with MAX workers at the next commit of a paceline.Elastic state.",
        "MIN[:MAX]",
    )
    save_every: str | None = option(
        None, "Save the script's paceline.Elastic state: every 10m, or every 500 commits.", "TIME|COMMITS"
    )
    save_to: Path | None = option(None, "Folder of the saved state.", "FOLDER", usual=f"{SAVES}/SCRIPT")
    resume: str | None = option(
        None, "Go on from a saved state. auto: from the one in --save-to, if there is one.", "auto|FOLDER"
    )


@verb(
    app,
    "paceline run -n 4 train.py --epochs 3",
    "paceline run -n 4 -m package.train --epochs 3",
    "paceline run -n 4 --as torchrun train_ddp.py",
    "paceline run --hosts a:4,b:4 train.py",
    "paceline run --rendezvous a:29500 --nodes 2 -n 8 --secret FILE train.py",
)
def run(session: Session, settings: RunSettings, lasting: LastingOptions, asked: RunOptions) -> None:
    workers, quiet, labels = asked.workers, session.quiet, asked.labels()
    mods: Sequence[str] = settings.mods
    if asked.emulate is not None:
        mods = [str(one) for one in catalog.parse([*mods, f"emulate={asked.emulate}"])]
    bounds = bounds_of(lasting.elastic)
    needed = settings.restarts > 0 or bounds.most is not None
    settings = replace(
        settings,
        elastic=bounds.least,
        most=bounds.most,
        saving=saving_of(lasting, settings.script, needed=needed),
        timeline=asked.timeline is not None,
    )
    said, own = "", bounds.most or default_workers(settings.strategy, settings.mods)
    if asked.preset is not None:
        found, where = find_preset(asked.preset, settings.script, module=settings.module, records=asked.record)
        if workers is None and not any(typed.startswith("workers=") for typed in mods):
            workers = found.workers
        if settings.compression == "none":
            settings = replace(settings, compression=found.compression)
        if settings.strategy == "mirrored":
            settings = replace(settings, strategy=found.strategy)
        mods = reduce(together, mods, tuple(found.mods))
        more = [found.strategy] * (found.strategy != "mirrored") + [found.compression] * (found.compression != "none")
        said = f"preset of {where}: {' '.join([*mods, *more]) or ': '.join(filter(None, ('no mods', found.said)))}"
    settings = replace(settings, mods=tuple(str(one) for one in catalog.parse(mods)))
    with cluster_of(session, asked, settings, workers, own) as (cluster, workers):
        settings = replace(settings, workers=workers)
        # Checked before the record's folder is made, so that a user's mistake leaves no record.
        here = settings if cluster is None or bounds.most is None else replace(settings, elastic=None, most=None)
        check(here, discover(), oversubscribe=asked.oversubscribe or cluster is not None)
        if cluster is not None and settings.launch_as is not None and lasting.elastic and bounds.most is None:
            raise UsageError(
                f"--elastic {lasting.elastic} and --as {settings.launch_as}: on several hosts a script that "
                "distributes itself goes on from a saved state, with a largest number of workers.",
                advice=f"Type: --elastic {lasting.elastic}:{workers} --save-every 10m",
            )
        if asked.timeline is not None and not asked.timeline.absolute().parent.is_dir():
            raise UsageError(
                f"--timeline {asked.timeline}: there is no folder {asked.timeline.parent}.",
                advice=f"Type: mkdir -p {asked.timeline.parent}",
            )
        if asked.tensorboard is not None:
            prove_board(asked.tensorboard)
        script, share = settings.script, settings.share_record
        record = session.open_record(asked.record, script, script=script, share=share, labels=labels)
        console = stderr()
        if said and not quiet:
            console.print(f"paceline: {said}", soft_wrap=True)
        live = LiveLine(
            console,
            workers=settings.workers,
            quiet=quiet,
            script_to_stderr=session.json,
            record=record,
            steps=settings.steps,
        )

        try:
            with showing(asked.tensorboard, record, live.event) as on_event:
                if cluster is not None:
                    interface = asked.interface
                    outcome = launch_on(settings, cluster, record=record, on_event=on_event, interface=interface)
                else:
                    outcome = launch(
                        settings,
                        zygote=session.workers(),
                        record=record,
                        on_event=on_event,
                        oversubscribe=asked.oversubscribe,
                    )
        finally:
            live.close()
        summary = summary_of(record, outcome, settings)
        if asked.timeline is not None:
            show_timeline(console, record, asked.timeline)
        if outcome.message:
            console.print(outcome.message, style="red", soft_wrap=True)
        clock = wall_clock_of(record, summary.warm_up, outcome)
        if clock is not None:
            summary = structs.replace(summary, seconds=clock.total)
            keep_duration(record, clock.total)
        hosts = 1 if cluster is None else len(cluster.hosts())
        advice = advise(summary, hosts=hosts, compression=settings.compression, own=settings.launch_as is None)
        typed = another_verb(session.context, session.typed, advice.verb, advice.options) if advice else ""
        noise = find_noise(record) if settings.noise_scale else None
        if quiet:
            tell(console, *ending(outcome))
        else:
            show_summary(console, summary, session, launch_as=settings.launch_as, outcome=outcome, clock=clock)
            if settings.noise_scale and summary.steps:
                measured = figure(noise, summary.samples / summary.steps) if noise else None
                tell(console, measured or Sentence("noise scale: not measured"))
            if advice is not None:
                said = f"{advice.found} {advice.purpose}, type:\n  {typed}"
                console.print(said, style="bold yellow", soft_wrap=True)
        if session.json:
            told = document(summary, outcome, clock) | {"hosts": hosts, "as": settings.launch_as}
            told["advice"] = {"found": advice.found, "purpose": advice.purpose, "command": typed} if advice else None
            session.print_document(told | {"noise_scale": noise_document(noise)} if settings.noise_scale else told)
        raise typer.Exit(outcome.exit_code)


def summary_of(record: Path, outcome: Outcome, settings: RunSettings) -> Summary:
    """The summary of the run; of what is known, if its record was lost while it ran."""
    try:
        summary = summarize(record)
    except RecordError:
        if not outcome.unrecorded:
            raise
        summary = Summary(
            workers=settings.workers,
            view=outcome.view,
            strategy=settings.strategy,
            mods=list(settings.mods),
            seconds=outcome.seconds,
            step=dict.fromkeys(("total", *PHASES), 0.0),
            exit_code=outcome.exit_code,
        )
    if outcome.unrecorded:
        made = max(summary.steps, outcome.steps)
        summary = structs.replace(summary, workers=settings.workers, steps=made, seconds=outcome.seconds)
    return summary


def keep_duration(record: Path, seconds: float) -> None:
    """Makes the duration of the command the run's: the launcher's own begins after the start of this process, and a
    run that has two durations has none."""
    with contextlib.suppress(RecordError):  # what could not be read or written is said elsewhere
        run = read_run(record)
        if run.outcome is not None:
            run.outcome.seconds = seconds
            write_run(record, run)


def show_timeline(console: Console, record: Path, timeline: Path) -> None:
    """Writes the trace. One that cannot be written does not make the run fail."""
    try:
        spans = write_trace(record, timeline)
    except RecordError as error:
        console.print(f"paceline: --timeline {timeline}: {error.message}", style="yellow", soft_wrap=True)
    else:
        console.print(f"timeline: {timeline} ({spans} spans; open it in ui.perfetto.dev)", soft_wrap=True)


def show_summary(
    console: Console,
    summary: Summary,
    session: Session,
    *,
    launch_as: Launcher | None = None,
    outcome: Outcome,
    clock: WallClock | None,
) -> None:
    """Prints the summary at the end of a run."""
    console.print()
    verdict = verdict_of(outcome)
    tell(console, *ending(outcome))
    wall = summary.seconds
    if summary.steps == 0:
        ran_all = summary.workers > 1 and launch_as is None and not verdict
        whole = ": every worker ran all of the script" if ran_all else ""
        console.print(
            f"{count(summary.workers, 'worker')} · {seconds(wall)} · no optimizer step was made{whole}", soft_wrap=True
        )
    else:
        head = [count(summary.workers, "worker"), count(summary.steps, "step"), seconds(wall)]
        if launch_as is not None:
            head.append(f"as {launch_as}")
        if summary.view:
            head.append(f"{summary.view} view")
        if summary.samples_per_s > 0:
            head.append(f"{rate(summary.samples_per_s)} samples/s")
        if summary.step_time > 0:
            head.append(f"{seconds(summary.step_time)} a step")
        console.print(" · ".join(head), style="bold", soft_wrap=True)
        if clock is not None:
            console.print(wall_clock_line(clock))
        if summary.step["total"] and not (verdict and summary.steps < MEASURED):
            show_times(console, summary)
    if session.record is not None:
        waited = most_waited_for(read_pipelines(session.record, 0))
        if waited is not None and waited.report.slowest:
            console.print(
                f"input: the script waited for its pipeline {percent(waited.report.waited)} of the time; "
                f"the bottleneck is {waited.report.bottleneck}",
                soft_wrap=True,
            )
    for text in outcome.not_in_force.values():
        console.print(text, style="yellow", soft_wrap=True)
    place = str(session.record)
    if outcome.unrecorded:
        kept = session.record is not None and session.record.is_dir()
        place = f"{place} (incomplete: see the warning above)" if kept else "none (see the warning above)"
    console.print(f"record: {place}", soft_wrap=True)


def show_times(console: Console, summary: Summary) -> None:
    """The table of where a step's time went, and the slowest worker."""
    show_table(console, time_table(summary.measured, check=summary.check))
    if summary.warm_up:
        left_out = "step is" if summary.warm_up == 1 else f"{summary.warm_up} steps are"
        console.print(f"(over steps and workers; the first {left_out} left out as warm-up)", style="dim")
    tell(console, *slowest(summary))


def document(summary: Summary, outcome: Outcome, clock: WallClock | None) -> dict[str, Any]:
    """What --json prints."""
    return {
        "workers": summary.workers,
        "view": summary.view,
        "strategy": summary.strategy,
        "mods": summary.mods,
        "steps": summary.steps,
        "samples": summary.samples,
        "seconds": summary.seconds,
        **figures_document(summary),
        "wall_clock": None if clock is None else msgspec.to_builtins(clock),
        "notices": outcome.notices,
        "not_in_force": outcome.not_in_force,
        **failure(outcome),
    }


# -- runs that outlast failures ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most workers of an elastic run, as typed."""

    least: int | None = None
    most: int | None = None


def bounds_of(typed: str | None) -> Bounds:
    """`2` or `2:4`."""
    if typed is None:
        return Bounds()
    least, colon, most = typed.partition(":")
    if not least.isdigit() or int(least) < 1 or (colon and (not most.isdigit() or int(most) < int(least))):
        raise UsageError(
            f"--elastic {typed}: not a number of workers.", advice="Type it like this: --elastic 2, or --elastic 2:4"
        )
    return Bounds(int(least), int(most) if colon else None)


def saving_of(asked: LastingOptions, script: str, *, needed: bool) -> SaveSettings | None:
    """Where and when the state is saved; None if nothing asks for it. `needed`: another option does."""
    every, folder, resume = asked.save_every, asked.save_to, asked.resume
    if every is None and folder is None and resume is None and not needed:
        return None
    where = (Path(SAVES) / Path(script).stem if folder is None else folder).absolute()
    start = where if resume == "auto" else Path(resume).absolute() if resume is not None else None
    if start is not None and not (start / "checkpoint.json").is_file():
        if resume != "auto":
            raise UsageError(
                f"--resume {resume}: there is no saved state.",
                advice="Type the folder that holds checkpoint.json, or --resume auto.",
            )
        start = None
    commits = int(every) if every is not None and every.isdigit() else 0
    if every is not None and every.isdigit() and not commits:
        raise UsageError("--save-every 0: nothing would be saved.", advice="Type it like this: --save-every 10m")
    seconds = read_time(every, "--save-every") if every is not None and not commits else None
    return SaveSettings(
        folder=str(where), seconds=seconds or 0.0, commits=commits, resume="" if start is None else str(start)
    )
