"""`paceline profile --prove`: each finding's mod as a trial, predicted beside measured."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from paceline.cli.shared import series
from paceline.cli.shared.session import Session
from paceline.launch.interrupts import exit_code_of
from paceline.settings import RunSettings
from paceline.trials.core.bench import Bench, Budget

if TYPE_CHECKING:
    from paceline.advise import Finding

PROOF = "The proof"
Prove = Annotated[
    bool,
    typer.Option(
        "--prove", help="Run each finding's mod as a trial: predicted beside measured.", rich_help_panel=PROOF
    ),
]
ProofBudget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="With --prove, take no longer: 90s, 5m.",
        show_default="as long as it takes",
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
    """Runs the trials and keeps what they gave in the record. Gives the exit code: 128 + the signal that
    stopped it."""
    from paceline.advise import write_findings
    from paceline.trials.tune import prove

    assert session.record is not None
    clock = Budget(budget)
    line = series.Line(console, clock, quiet=quiet)
    bench = Bench(
        dataclasses.replace(settings, profile=None, steps=prove.STEPS, enough=prove.SETTLED),
        zygote=session.workers(),
        record=session.record,
        budget=clock,
        verb="profile",
        on_event=line.event,
        on_start=line.start,
    )
    code = 0
    try:
        with line:
            prove.prove(bench, found, mods=settings.mods, tell=line.say)
    except KeyboardInterrupt as error:
        code = exit_code_of(error)
    write_findings(session.record, found)
    return code
