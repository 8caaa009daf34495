"""`paceline profile`: traces a few steps, and shows where their time goes, op by op."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console

from paceline.cli.hosts import on_hosts
from paceline.cli.live import LiveLine
from paceline.cli.options import ScriptOptions, default_workers
from paceline.cli.run import RunOptions
from paceline.cli.series import Series, failure
from paceline.cli.session import Session
from paceline.cli.terminal import results, stderr
from paceline.cli.verb import alone, verb
from paceline.doctor.dependencies import need
from paceline.errors import PacelineError, RecordError, UsageError
from paceline.launch import Event, Output, check, launch
from paceline.launch.interrupts import exit_code_of
from paceline.launch.tensorboard import prove_board, showing
from paceline.options import OUTPUT, again, option, read_time
from paceline.record import Outcome, read_run
from paceline.reports.clocks import clocks, clocks_document
from paceline.reports.ending import ending
from paceline.reports.figure_text import figures_document
from paceline.reports.findings import findings
from paceline.reports.profile import report
from paceline.reports.terminal import show, tell
from paceline.settings import ProfileSettings, RunSettings
from paceline.topology import discover
from paceline.topology.sampling import Sampler

if TYPE_CHECKING:
    from paceline.advise.finding import Finding
    from paceline.advise.profile import Profile

# What torch's allocator says of every trace of a script that holds memory already: nothing that a person can mend.
OF_TORCH = re.compile(
    rb"(?:\[rank\d+\]:)?\[W[^\n]*Memory block of unknown size was allocated before the profiling[^\n]*\n"
)
app = alone()


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(ScriptOptions):
    trace: tuple[Path, ...] = option(
        (),
        "Read this torch trace instead of running a script. May be repeated, once per rank.",
        "FILE",
        panel=ProfileSettings.PANEL,
    )
    prove: bool = option(
        False, "Measure each finding's mod in a trial, beside its predicted gain.", panel="Proving findings"
    )
    budget: str | None = option(
        None, "Time limit for --prove: 90s, 5m.", "TIME", usual="no limit", panel="Proving findings"
    )
    top: int = option(10, "Number of rows of each table.", "N", least=1, panel=OUTPUT)
    tensorboard: Path | None = again(RunOptions, "tensorboard")


@verb(
    app,
    "paceline profile -n 2 train.py --epochs 3",
    "paceline profile --prove train.py",
    "paceline profile --hosts a:4,b:4 train.py",
    "paceline profile --trace trace.json.gz",
    script=False,
)
def profile(session: Session, settings: RunSettings, traced: ProfileSettings, asked: ProfileOptions) -> None:
    script, budget = settings.script, asked.budget
    need("view", "profile")
    console = stderr()
    if asked.trace:
        if script:
            raise UsageError(
                f"--trace reads existing traces and runs no script, but the script {script} was given.",
                advice="Leave out the script, or --trace.",
            )
        if asked.prove:
            raise UsageError(
                "--prove needs a script to try mods on, but --trace was given.",
                advice="Type: paceline profile --prove train.py",
            )
        _tell(_read(asked.trace), session, top=asked.top)
        return
    if not script:
        raise UsageError("SCRIPT is missing.", advice="Type: paceline profile train.py")
    if budget is not None and not asked.prove:
        raise UsageError(
            f"--budget {budget} limits the trials of --prove, and --prove was not given.",
            advice=f"Type: paceline profile --prove --budget {budget} {script}",
        )
    if asked.prove and settings.launch_as is not None:
        raise UsageError(
            f"--prove tries mods, and with --as {settings.launch_as} no mod is applied: the script distributes itself.",
            advice="Leave out --prove, or --as.",
        )
    limit, labels = None if budget is None else read_time(budget, "--budget"), asked.labels()
    settings = replace(settings, profile=traced)
    own = default_workers(settings.strategy)
    settings = replace(settings, workers=on_hosts(session, asked, settings, asked.workers, own))
    # Checked before the record's folder is made, so that a user's mistake leaves no record.
    check(settings, discover(), oversubscribe=asked.oversubscribe or session.hosts is not None)
    if asked.tensorboard is not None:
        prove_board(asked.tensorboard)
    session.open_record(asked.record, script, script=script, share=settings.share_record, labels=labels)
    outcome = _run(settings, session, console, oversubscribe=asked.oversubscribe, tensorboard=asked.tensorboard)
    try:
        assert session.record is not None
        told = _read(session.record)
    except PacelineError as error:
        lost = _lost(outcome, asked.record)
        if outcome.exit_code == 0:
            if lost is not None:
                raise lost from error
            raise
        # The script failed before any step was traced, or the disk is full; the launcher has printed the error.
        if lost is not None:
            console.print(lost.message, style="yellow", soft_wrap=True)
        if not session.quiet:
            console.print(f"record: {session.record}", soft_wrap=True)
        if session.json:
            session.print_document(failure(outcome) | {"as": settings.launch_as})
    else:
        if outcome.unrecorded and told.ranks < settings.workers:
            missing = settings.workers - told.ranks
            console.print(f"The traces of {missing} of {settings.workers} workers are lost.", style="yellow")
        code = 0
        if asked.prove and outcome.exit_code == 0:
            code = _prove(session, settings, told.findings, budget=limit)
        more = failure(outcome) | {"as": settings.launch_as}
        _tell(told, session, top=asked.top, more=more)
        if code:
            raise typer.Exit(code)
    raise typer.Exit(outcome.exit_code)


def _run(
    settings: RunSettings, session: Session, console: Console, *, oversubscribe: bool, tensorboard: Path | None
) -> Outcome:
    """Runs the script and returns its outcome."""
    assert session.record is not None
    workers, quiet = settings.workers, session.quiet
    live = LiveLine(console, workers=workers, quiet=quiet, script_to_stderr=True, record=session.record)

    def show_event(event: Event) -> None:
        if isinstance(event, Output):
            event = msgspec.structs.replace(event, data=OF_TORCH.sub(b"", event.data))
        live.event(event)

    try:
        with (
            Sampler(session.record) if session.hosts is None else nullcontext(),  # the load of this host
            showing(tensorboard, session.record, show_event) as on_event,
        ):
            outcome = launch(
                settings,
                zygote=session.workers(),
                record=session.record,
                on_event=on_event,
                verb="profile",
                oversubscribe=oversubscribe,
            )
    finally:
        live.close()
    if outcome.message:
        console.print(outcome.message, style="red", soft_wrap=True)
    tell(console, *ending(outcome))
    return outcome


def _prove(session: Session, settings: RunSettings, found: list[Finding], *, budget: float | None) -> int:
    """Runs the trials and writes the measured gains into the record. Returns the exit code: 128 + the signal's number
    after an interrupt."""
    from paceline.advise.commands import complete
    from paceline.advise.finding import write_findings
    from paceline.trials.tune import prove

    assert session.record is not None
    settings = replace(settings, profile=None, steps=prove.STEPS, enough=prove.SETTLED)
    course = Series.on(session, settings, session.record, budget)
    code = 0
    run = read_run(session.record)
    try:
        with course.line:
            prove.prove(course.bench(label=str), found, mods=settings.mods, tell=course.line.say)
    except KeyboardInterrupt as error:
        code = exit_code_of(error)
    for finding in found:  # another mod may have turned out to be the faster one
        complete(finding, run)
    write_findings(session.record, found)
    return code


def _lost(outcome: Outcome, parent: Path) -> RecordError | None:
    """The error if the record could not be written, so that there is no trace. The launcher has printed the cause."""
    if not outcome.unrecorded:
        return None
    return RecordError(
        "There is no profile: the trace could not be written. The script itself was not disturbed.",
        advice=f"Free some space in {parent}, or name another folder: paceline profile --record DIR …",
    )


def _read(what: Path | Sequence[Path]) -> Profile:
    """Reads a record or traces. Imports polars here, because that import takes longer than most verbs."""
    from paceline.advise.finding import write_findings
    from paceline.advise.profile import summarize
    from paceline.tables.figures import keep_figures
    from paceline.tables.records import read_files, read_record
    from paceline.tables.trace.kept import keep
    from paceline.view.records.spans import keep_time_line

    if not isinstance(what, Path):
        return summarize(read_files(what))
    tables = read_record(what)
    told = summarize(tables)
    # `view` need not parse large traces again, nor lay out their time line.
    if sum([keep(trace) for trace in tables.traces]):
        keep_time_line(what)
    keep_figures(what)
    write_findings(what, told.findings)
    return told


def _tell(told: Profile, session: Session, *, top: int, more: dict[str, Any] | None = None) -> None:
    console = results(json=session.json)
    run = read_run(session.record) if session.record is not None else None
    if not session.quiet:
        show(console, report(told, top=top))
        tell(console, *findings(told.findings))
        if run is not None:
            tell(console, *clocks(run))
        if session.record is not None:
            console.print(f"record: {session.record}", soft_wrap=True)
    if session.json:
        measured = {"clocks": clocks_document(run)} if run is not None else {}
        session.print_document(document(told) | measured | (more or {}))


def document(told: Profile) -> dict[str, Any]:
    """What --json prints."""
    return {
        "ranks": told.ranks,
        "steps": told.steps,
        "first": told.first,
        "last": told.last,
        **(figures_document(told.figures) if told.figures.steps else {}),
        "breakdown": {"step": told.step, "host": told.host, "device": told.device, "tensor_cores": told.tensor_cores},
        "iterations": told.iterations,
        "ops": told.ops,
        "kernels": told.kernels,
        "waits": told.waits,
        "findings": msgspec.to_builtins(told.findings),
    }
