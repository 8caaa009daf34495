"""`paceline profile`: traces a few steps, and shows where their time goes, op by op."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from paceline.cli import options, prove, series
from paceline.cli.help import verb
from paceline.cli.hosts import on_hosts
from paceline.cli.live import LiveLine
from paceline.cli.need import need
from paceline.cli.script_options import ScriptOptionsWithLauncher, runs_scripts
from paceline.cli.session import Session
from paceline.cli.terminal import results, stderr
from paceline.errors import PacelineError, RecordError, UsageError
from paceline.launch import Event, Output, check, launch
from paceline.launch.tensorboard import prove_board, showing
from paceline.mods import catalog
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
    from paceline.advise.profile import Profile

WHAT = "Tracing"
# What torch's allocator says of every trace of a script that holds memory already: nothing that a person can mend.
OF_TORCH = re.compile(
    rb"(?:\[rank\d+\]:)?\[W[^\n]*Memory block of unknown size was allocated before the profiling[^\n]*\n"
)
Steps = Annotated[
    int,
    typer.Option("--steps", metavar="K", min=1, help="Number of steps to trace on every worker.", rich_help_panel=WHAT),
]
WarmUp = Annotated[
    int | None,
    typer.Option(
        "--warm-up",
        metavar="K",
        min=2,
        help="Number of warm-up steps before the trace.",
        show_default="until step times are steady",
        rich_help_panel=WHAT,
    ),
]
Stack = Annotated[
    bool,
    typer.Option(
        "--stack", help="Record Python stacks: adds time by module, slows traced steps.", rich_help_panel=WHAT
    ),
]
ToTheEnd = Annotated[
    bool,
    typer.Option(
        "--to-the-end", "--whole-run", help="Run the script to its end after the trace.", rich_help_panel=WHAT
    ),
]
TraceFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Read this torch trace instead of running a script. May be repeated, once per rank.",
        show_default=False,
        rich_help_panel=WHAT,
    ),
]
Top = Annotated[
    int, typer.Option("--top", metavar="N", min=1, help="Number of rows of each table.", rich_help_panel=options.OUTPUT)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOrTraced(ScriptOptionsWithLauncher):
    """The script options, with an optional script: --trace needs none."""

    script: options.Script = ""


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command(
        "profile",
        cls=verb(
            "paceline profile -n 2 train.py --epochs 3",
            "paceline profile --prove train.py",
            "paceline profile --hosts a:4,b:4 train.py",
            "paceline profile --trace trace.json.gz",
        ),
        context_settings=options.SCRIPT_LAST,
    )(profile)


@runs_scripts
def profile(
    context: typer.Context,
    asked: AskedOrTraced,
    workers: options.Workers = None,
    steps: Steps = 5,
    warm_up: WarmUp = None,
    stack: Stack = False,
    to_the_end: ToTheEnd = False,
    trace: TraceFiles = None,
    prove_it: prove.Prove = False,
    budget: prove.ProofBudget = None,
    mod: options.Mods = None,
    top: Top = 10,
    record: options.RecordParent = options.RECORDS,
    tensorboard: options.TensorBoard = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    session = Session.of(context, json=json)
    need("view", "profile")
    console = stderr()
    if trace:
        if asked.script:
            raise UsageError(
                f"--trace reads existing traces and runs no script, but the script {asked.script} was given.",
                advice="Leave out the script, or --trace.",
            )
        if prove_it:
            raise UsageError(
                "--prove needs a script to try mods on, but --trace was given.",
                advice="Type: paceline profile --prove train.py",
            )
        _tell(_read(trace), session, results(json=json), top=top, json=json, quiet=quiet)
        return
    if not asked.script:
        raise UsageError("SCRIPT is missing.", advice="Type: paceline profile train.py")
    if budget is not None and not prove_it:
        raise UsageError(
            f"--budget {budget} limits the trials of --prove, and --prove was not given.",
            advice=f"Type: paceline profile --prove --budget {budget} {asked.script}",
        )
    if prove_it and (launcher := asked.launcher()) is not None:
        raise UsageError(
            f"--prove tries mods, and with --as {launcher} no mod is applied: the script distributes itself.",
            advice="Leave out --prove, or --as.",
        )
    settings = replace(
        asked.settings(),
        mods=tuple(str(asked) for asked in catalog.parse(mod or [])),
        profile=ProfileSettings(steps=steps, warm_up=warm_up, stack=stack, whole_run=to_the_end),
    )
    seconds, labels = series.parse_time(budget), asked.labels()
    own = options.default_workers(asked.strategy)
    settings = replace(settings, workers=on_hosts(session, asked, settings, workers, own, quiet=quiet))
    # Checked before the record's folder is made, so that a user's mistake leaves no record.
    check(settings, discover(), oversubscribe=asked.oversubscribe or session.hosts is not None)
    if tensorboard is not None:
        prove_board(tensorboard)
    session.open_record(record, asked.script, script=asked.script, share=asked.share_record, labels=labels)
    outcome = _run(
        settings, session, console, oversubscribe=asked.oversubscribe, tensorboard=tensorboard, quiet=quiet, json=json
    )
    try:
        assert session.record is not None
        told = _read(session.record)
    except PacelineError as error:
        lost = _lost(outcome, record)
        if outcome.exit_code == 0:
            if lost is not None:
                raise lost from error
            raise
        # The script failed before any step was traced, or the disk is full; the launcher has printed the error.
        if lost is not None:
            console.print(lost.message, style="yellow", soft_wrap=True)
        if not quiet:
            console.print(f"record: {session.record}", soft_wrap=True)
        if json:
            session.print_document(failure(outcome) | {"as": settings.launch_as})
    else:
        if outcome.unrecorded and told.ranks < settings.workers:
            missing = settings.workers - told.ranks
            console.print(f"The traces of {missing} of {settings.workers} workers are lost.", style="yellow")
        code = 0
        if prove_it and outcome.exit_code == 0:
            code = prove.carry_out(session, settings, told.findings, budget=seconds, console=console, quiet=quiet)
        more = failure(outcome) | {"as": settings.launch_as}
        _tell(told, session, results(json=json), top=top, json=json, quiet=quiet, more=more)
        if code:
            raise typer.Exit(code)
    raise typer.Exit(outcome.exit_code)


def _run(
    settings: RunSettings,
    session: Session,
    console: Console,
    *,
    oversubscribe: bool,
    tensorboard: Path | None,
    quiet: bool,
    json: bool,
) -> Outcome:
    """Runs the script and returns its outcome."""
    assert session.record is not None
    live = LiveLine(console, workers=settings.workers, quiet=quiet, script_to_stderr=True, record=session.record)

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


def _lost(outcome: Outcome, parent: Path) -> RecordError | None:
    """The error if the record could not be written, so that there is no trace. The launcher has printed the cause."""
    if not outcome.unrecorded:
        return None
    return RecordError(
        "There is no profile: the trace could not be written. The script itself was not disturbed.",
        advice=f"Free some space in {parent}, or name another folder: paceline profile --record DIR …",
    )


def _read(what: Path | list[Path]) -> Profile:
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


def _tell(
    told: Profile,
    session: Session,
    console: Console,
    *,
    top: int,
    json: bool,
    quiet: bool,
    more: dict[str, Any] | None = None,
) -> None:
    run = read_run(session.record) if session.record is not None else None
    if not quiet:
        show(console, report(told, top=top))
        tell(console, *findings(told.findings))
        if run is not None:
            tell(console, *clocks(run))
        if session.record is not None:
            console.print(f"record: {session.record}", soft_wrap=True)
    if json:
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
