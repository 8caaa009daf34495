"""`paceline profile --prove`: runs a trial of each finding's mod, to compare predicted and measured gain."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from paceline.cli.progress_line import Line
from paceline.cli.session import Session
from paceline.launch.interrupts import exit_code_of
from paceline.record import read_run
from paceline.settings import RunSettings
from paceline.trials.core.bench import Bench, Budget

if TYPE_CHECKING:
    from paceline.advise.finding import Finding

PROOF = "Proving findings"
Prove = Annotated[
    bool,
    typer.Option(
        "--prove", help="Measure each finding's mod in a trial, beside its predicted gain.", rich_help_panel=PROOF
    ),
]
ProofBudget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="Time limit for --prove: 90s, 5m.",
        show_default="no limit",
        rich_help_panel=PROOF,
    ),
]


def carry_out(
    session: Session,
    settings: RunSettings,
    found: list[Finding],
    *,
    budget: float | None,
    console: Console,
    quiet: bool,
) -> int:
    """Runs the trials and writes the measured gains into the record. Returns the exit code: 128 + the signal's number
    after an interrupt."""
    from paceline.advise.commands import complete
    from paceline.advise.finding import write_findings
    from paceline.trials.tune import prove

    assert session.record is not None
    clock = Budget(budget)
    line = Line(console, clock, quiet=quiet)
    bench = Bench(
        dataclasses.replace(settings, profile=None, steps=prove.STEPS, enough=prove.SETTLED),
        zygote=session.workers(),
        record=session.record,
        budget=clock,
        verb="profile",
        on_event=line.event,
        on_start=lambda name: line.start(name, trial=True),
    )
    code = 0
    run = read_run(session.record)
    try:
        with line:
            prove.prove(bench, found, mods=settings.mods, tell=line.say)
    except KeyboardInterrupt as error:
        code = exit_code_of(error)
    for finding in found:  # another mod may have turned out to be the faster one
        complete(finding, run)
    write_findings(session.record, found)
    return code
