"""`paceline tune`: finds the mods that make a script faster, and measures the gain of each."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from paceline.cli import series
from paceline.cli.hosts import on_hosts
from paceline.cli.options import RECORDS, default_workers
from paceline.cli.series import Series, SeriesOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted
from paceline.cli.verb import alone, verb
from paceline.errors import UsageError
from paceline.launch import Event, Notice
from paceline.mods import catalog
from paceline.options import option, read_time
from paceline.record.private import write_file
from paceline.record.stopping import stop
from paceline.reports.report import Command
from paceline.reports.terminal import show
from paceline.reports.tune import advice, charts, report
from paceline.settings import RunSettings
from paceline.topology import Host, discover
from paceline.trials.core.bench import Budget, Measured, Status, details
from paceline.trials.tune.candidates import (
    ALLOWED,
    MORE,
    Candidate,
    candidates,
    check_asked,
    settings_of,
    summary_of,
    tried_names,
)
from paceline.trials.tune.command import command, spelled_out
from paceline.trials.tune.from_findings import advised, put_first
from paceline.trials.tune.patch import BY_HAND, Patch, read, write_patch
from paceline.trials.tune.preset import TUNED, Preset, whole_path, write_preset
from paceline.trials.tune.search import Search
from paceline.trials.tune.verdict import Verdict
from paceline.units import rate

ENOUGH = 1.0  # seconds of steady steps after which a trial ends


def complete_tried(incomplete: str) -> list[tuple[str, str]]:
    """What a shell offers for the name of a mod that `tune` tries."""
    names = [name for name in tried_names() if name.startswith(incomplete)]
    return [(name, summary_of(name)) for name in names]


app = alone()


@dataclass(frozen=True, kw_only=True)
class TuneOptions(SeriesOptions):
    budget: float | None = option("5m", "Time limit: 90s, 5m, 1h30m.", "TIME", reads=read_time)
    allow: tuple[str, ...] = option(
        (),
        "Also try mods that change the numbers. batch: a larger batch, with a scaled learning rate. exactness: "
        "what several workers may do otherwise than one process (bn=local, random=own, view=slice). May be repeated.",
        "batch|exactness",
    )
    start: tuple[str, ...] = option(
        (), "Start from this mod. May be repeated.", "NAME[=VALUE]", names="--mod", complete=catalog.complete
    )
    only: tuple[str, ...] = option(
        (), "Try only this mod. May be repeated.", "NAME", usual="all mods that apply", complete=complete_tried
    )
    without: tuple[str, ...] = option((), "Do not try this mod. May be repeated.", "NAME", complete=complete_tried)
    steps: int = option(1000, "Step limit of a trial.", "K", least=10)


@verb(app, "paceline tune train.py --epochs 10", "paceline tune --budget 15m --allow batch train.py")
def tune(session: Session, settings: RunSettings, asked: TuneOptions) -> None:
    settings = replace(settings, steps=asked.steps, enough=ENOUGH)
    own = default_workers(settings.strategy)
    settings = replace(settings, workers=on_hosts(session, asked, settings, asked.workers, own))
    host = on_each(session, settings) or discover()
    start = tuple(str(mod) for mod in catalog.parse(asked.start))
    check_asked(start=start, allow=asked.allow, only=asked.only, without=asked.without)
    hosts = [each.workers for each in session.hosts.specs] if session.hosts is not None else []
    tried = what_to_try(settings, host, hosts, asked)
    mods, profiled = advised(settings.script, module=settings.module, records=asked.record)
    course = Series.begin(session, settings, asked, host=host)
    if profiled is not None and not session.quiet:
        course.console.print(
            f"paceline: mods from the findings in {profiled} are tried first: {' '.join(mods) or 'none'}",
            soft_wrap=True,
        )
    words = session.hosts.words if session.hosts is not None else []
    verdict, code = carry_out(course, put_first(tried, mods), start=start, hosts=words)
    told = keep(verdict, course.settings, course.record, hosts=words, cuda=bool(host.gpus))
    if not session.quiet:
        show_result(course.results, verdict, told, course.record)
    made = series.document(verdict, trouble(verdict, course) if code else None, **in_json(told))
    series.finish(session, made, code=code, plots=[told["plot"]])


def on_each(session: Session, settings: RunSettings) -> Host | None:
    """What every one of several hosts has at least."""
    if session.hosts is None:
        return None
    here, there = discover(), session.hosts.facts(settings)
    cores, gpus = min(each.cores for each in there), min(each.gpus for each in there)
    return replace(here, cores=here.cores[:1] * cores, quota=None, gpus=tuple(map(str, range(gpus))))


def what_to_try(settings: RunSettings, host: Host, hosts: list[int], asked: TuneOptions) -> list[Candidate]:
    """The candidates for this machine and these options. `hosts`: the workers of each of several hosts."""
    for allowed in asked.allow:
        if allowed not in ALLOWED:
            known = " and ".join(ALLOWED)
            raise UsageError(f"--allow {allowed}: only {known} can be allowed.", advice=f"Type: --allow {MORE}")
    tried = candidates(
        gpus=len(host.gpus),
        cores=host.usable_cores,
        workers=settings.workers,
        threads=settings.threads or max(1, host.usable_cores // max([*hosts, 0 if hosts else settings.workers])),
        allow=asked.allow,
        only=asked.only,
        without=asked.without,
        hosts=hosts,
    )
    # What was asked for is not to be changed.
    fixed = {"threads": settings.threads, "strategy": settings.strategy != "mirrored"}
    fixed["compression"] = fixed["strategy"]
    return [one for one in tried if not fixed.get(one.name)]


def carry_out(
    course: Series, tried: list[Candidate], *, start: tuple[str, ...], hosts: list[str]
) -> tuple[Verdict, int]:
    """Runs the search. Writes run.json even after an error or an interrupt. Returns the verdict and the exit code."""

    def label(name: str) -> str:
        return name.replace("+", " + ")

    def on_result(measured: Measured) -> None:
        said = f"{rate(measured.samples_per_s)} samples/s" if measured.ok else measured.message
        course.line.say(f"{label(measured.name)}: {said}")

    def tell(text: str, style: str) -> None:
        if not course.session.quiet:
            course.console.print(f"paceline: {text}", style=style, soft_wrap=True)

    def on_event(event: Event) -> None:
        if not (isinstance(event, Notice) and event.mod):  # what a mod says of itself is in the table
            course.line.event(event)

    def alone(settings: RunSettings) -> list[str]:
        return spelled_out(settings, settings.mods, hosts=hosts)

    search = Search(
        course.bench(label=label, alone=alone, on_event=on_event, on_result=on_result),
        tried,
        start=start,
        budget=course.budget.seconds,
        enough=ENOUGH,
        on_note=lambda text: tell(text, "yellow"),
        on_kept=lambda text: tell(f"kept {text}", "green"),
    )
    with course.running() as outcome:
        search.carry_out()
        outcome.exit_code = int(bool(search.problem))
    if search.failed is not None:
        search.problem = explain(search.failed, course.budget, course.console)
    return search.verdict(interrupted=outcome.interrupted), outcome.exit_code


def explain(failed: Measured, budget: Budget, console: Console) -> str:
    """Why the unmodified script could not be measured. Prints the script's own error, if there is one."""
    if failed.status is Status.BUDGET:
        made = f"made {failed.steps} steps, too few to measure," if failed.steps else "made no optimizer step"
        return f"the script {made} within the budget of {budget.seconds:.0f} s"
    if failed.status is Status.FAILED and failed.record and (said := details(failed)) != failed.message:
        console.print(said, style="red", soft_wrap=True)
    return failed.message


def keep(verdict: Verdict, settings: RunSettings, record: Path, *, hosts: list[str], cuda: bool) -> dict[str, Any]:
    """Writes the verdict, the plot, the preset and the patch into the record. Returns their paths, the patch, and the
    command that keeps the mods."""
    series.write_verdict(record, verdict)
    told: dict[str, Any] = {"command": None, "spelled_out": None, "preset": None, "patch": None, "plot": None}
    told["plot"] = plotted(charts(verdict), record / "plots" / "tune.svg", settings.script)
    if verdict.final is None:
        return told
    mods = verdict.final.mods
    applied, changes = settings_of(mods)
    preset = Preset(
        script=whole_path(settings.script, module=settings.module),
        module=settings.module,
        mods=list(applied),
        workers=changes.get("workers", settings.workers),
        strategy=changes.get("strategy", "mirrored"),
        compression=changes.get("compression", "none"),
        gain=verdict.final.gain,
        said=verdict.conclusion.sentence,
        made=time.time(),
    )
    told["preset"] = write_preset(record, preset)
    told["command"] = told["spelled_out"] = shlex.join(command(settings, hosts=hosts))
    if mods:
        told["patch"] = write_patch(*read(settings.script, module=settings.module), applied, cuda=cuda)
        write(record / "tuned.patch", told["patch"].diff.encode())
        write(record / BY_HAND, msgspec.json.format(msgspec.json.encode(told["patch"].by_hand)))
        where = [] if record.parent == RECORDS else ["--record", str(record.parent)]
        told["command"] = shlex.join(command(settings, "--preset", TUNED, *where, hosts=hosts))
        told["spelled_out"] = shlex.join(spelled_out(settings, mods, hosts=hosts))
    return told


def write(path: Path, data: bytes) -> None:
    """Writes a file of the record. If that fails: see `record.stopping`."""
    try:
        write_file(path, data)
    except OSError as error:
        stop(path, error)


def show_result(console: Console, verdict: Verdict, told: dict[str, Any], record: Path) -> None:
    """Prints the table of mods, the total gain, the command that keeps the mods, and the patch."""
    patch: Patch = told["patch"] or Patch()
    about = f"the same as: {told['spelled_out']}"
    typed = Command("to keep it, type", told["command"], about) if told["patch"] else None
    path = record / "tuned.patch"
    show(console, report(verdict, typed=typed, patch=patch.diff, path=path, by_hand=patch.by_hand))


def in_json(told: dict[str, Any]) -> dict[str, Any]:
    """The result of `keep`, for the JSON document."""
    patch: Patch | None = told["patch"]
    return told | {
        "patch": None if patch is None else {"diff": patch.diff, "mods": patch.mods},
        "by_hand": [] if patch is None else msgspec.to_builtins(patch.by_hand),
    }


def trouble(verdict: Verdict, course: Series) -> series.Trouble:
    """Why the exit code is not 0."""
    if verdict.interrupted:
        return course.interrupted("the search had ended")
    return series.Trouble("NothingToTune", verdict.problem, advice(verdict, course.settings.script))
