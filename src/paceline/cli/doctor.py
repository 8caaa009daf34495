"""`paceline doctor`: checks this machine, and prints what to type if a check fails."""

from __future__ import annotations

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.shared import options
from paceline.cli.shared.example_first import verb
from paceline.cli.shared.session import Session
from paceline.doctor.checks import Check, examine


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command("doctor", cls=verb("paceline doctor"))(doctor)


def doctor(context: typer.Context, record: options.RecordParent = options.RECORDS, json: options.Json = False) -> None:
    """Checks whether this machine can run workers, and prints what to type if a check fails."""
    session = Session.of(context, json=json)
    checks = examine(record)
    if json:
        session.print_document({"checks": msgspec.to_builtins(checks)})
    else:
        show(Console(highlight=False, markup=False), checks)
    raise typer.Exit(int(any(check.prevents and not check.ok for check in checks)))


def show(console: Console, checks: list[Check]) -> None:
    """Prints a table with one mark per check, the advice for each failed check, and a conclusion."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for check in checks:
        mark = Text("ok", "green") if check.ok else Text("stop" if check.prevents else "warn", "bold red")
        found = Text(check.found)
        if check.advice:
            found.append(f"\n→ {check.advice}", style="yellow")
        table.add_row(mark, Text(check.name, "bold"), found)
    console.print(table)
    wrong = [check for check in checks if not check.ok]
    stops = [check for check in wrong if check.prevents]
    console.print()
    if not wrong:
        console.print("All checks passed. Try: paceline run -n 2 train.py")
    elif stops:
        console.print("A run cannot start here until the problems marked 'stop' are fixed.", style="bold red")
    else:
        console.print("A run can start here, but the problems marked 'warn' may make it slow or fail later.")
