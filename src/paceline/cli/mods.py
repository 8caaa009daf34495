"""`paceline mods`: lists the changes that a run can make to a script without editing the script."""

from __future__ import annotations

import msgspec

from paceline.cli.options import JsonOptions
from paceline.cli.session import Session
from paceline.cli.terminal import grid, results
from paceline.cli.verb import alone, verb
from paceline.mods.catalog import CATALOG

NUMBERS = {"same": "same", "rounded": "same to rounding", "other": "changed"}


app = alone()


@verb(app, "paceline mods", "paceline run --mod precision=bf16 --mod channels_last train.py")
def mods(session: Session, asked: JsonOptions) -> None:
    if asked.json:
        session.print_document({"mods": [msgspec.to_builtins(entry) for entry in CATALOG.values()]})
        return
    table = grid("--mod", "what it does", "numbers")
    for entry in CATALOG.values():
        takes_number = entry.values == ("N",)
        value = "=N" if takes_number else "=VALUE" if entry.pattern else "[=VALUE]" if entry.values else ""
        choice = f" ({', '.join(entry.values)})" if entry.values and not takes_number else ""
        table.add_row(entry.name + value, entry.summary + choice, NUMBERS[entry.numbers])
    results().print(table)
