"""`paceline doctor`: checks this machine, and prints what to type if a check fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.cli.defaults import OWN, PREFIX, Defaults, find_defaults
from paceline.cli.options import JsonOptions, RecordOptions
from paceline.cli.session import Session
from paceline.cli.terminal import grid, results
from paceline.cli.verb import alone, verb
from paceline.doctor.checks import Check, examine
from paceline.errors import UsageError
from paceline.options import again
from paceline.settings import all_variables
from paceline.units import count

app = alone()


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(JsonOptions):
    record: Path = again(RecordOptions, "record")


@verb(app, "paceline doctor")
def doctor(session: Session, asked: DoctorOptions) -> None:
    found, check = _defaults(session.context.find_root().command)
    checks = [*examine(asked.record), check]
    listed = [{"option": each.words, "source": each.source, "beaten": found.beaten(each)} for each in found.found]
    if session.json:
        session.print_document({"checks": msgspec.to_builtins(checks), "defaults": listed})
    else:
        show(results(), checks, found)
    raise typer.Exit(int(any(check.prevents and not check.ok for check in checks)))


def _defaults(program: Any) -> tuple[Defaults, Check]:
    """The defaults of the project, and whether they can be used."""
    try:
        found = find_defaults(program, all_variables(), Path.cwd())
    except UsageError as error:
        wrong = Check(name="defaults", ok=False, found=error.message, advice=error.advice, prevents=True)
        return Defaults(), wrong
    if found.ignored:
        return found, Check(name="defaults", ok=False, found=" ".join(found.ignored), advice="chown or chmod the file.")
    told = count(len(found.found), "default") if found.found else f"none: no {OWN}, no {PREFIX}… variable"
    return found, Check(name="defaults", ok=True, found=told)


def show(console: Console, checks: list[Check], defaults: Defaults | None = None) -> None:
    """Prints a table with one mark per check, the advice for each failed check, the defaults of the project with their
    sources, and a conclusion."""
    table = grid()
    for check in checks:
        mark = Text("ok", "green") if check.ok else Text("stop" if check.prevents else "warn", "bold red")
        found = Text(check.found)
        if check.advice:
            found.append(f"\n→ {check.advice}", style="yellow")
        table.add_row(mark, Text(check.name, "bold"), found)
    console.print(table)
    if defaults is not None and defaults.found:
        console.print()
        console.print(_defaults_table(defaults))
    wrong = [check for check in checks if not check.ok]
    stops = [check for check in wrong if check.prevents]
    console.print()
    if not wrong:
        console.print("All checks passed. Try: paceline run -n 2 train.py")
    elif stops:
        console.print("A run cannot start here until the problems marked 'stop' are fixed.", style="bold red")
    else:
        console.print("A run can start here, but the problems marked 'warn' may make it slow or fail later.")


def _defaults_table(defaults: Defaults) -> Table:
    table = grid(header_style="bold", show_header=True)
    table.add_column("default of this project", overflow="fold")
    table.add_column("from", overflow="fold")
    table.add_column("")
    for each in defaults.found:
        beaten = defaults.beaten(each)
        words = each.words if each.verb else f"{each.words} (all verbs that have it)"
        table.add_row(words, each.source, "beaten by another source" if beaten else "", style="dim" if beaten else "")
    return table
