"""Which functions keep a model's output sharded: the tables of tests/scripts/sharded_outputs.py say it by their names.

That the numbers are right is shown by tests/acceptance, which runs that script.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "sharded_outputs.py"
LOOP = """
from paceline.script.rows.tensor import Rows
for table in ("ROWS", "KEPT", "GATHERED"):
    for name, use in globals()[table].items():
        out = model(x)
        made = use(out)
        kind = "ROWS" if isinstance(made, Rows) else "KEPT" if isinstance(out, Rows) else "GATHERED"
        if kind != table and name not in {exceptions}:
            print(name, "is in", table, "and was", kind)
print("end")
"""
# Outputs that the tables' functions copy before they gather it, or that they use both ways.
EXCEPTIONS = ("views of gathered", "vmap", "chained flat", "retained", "places", "other type", "assigned")


@pytest.mark.parametrize("workers", [2])
def test_known_functions_gather_nothing_and_others_gather_once(play: Callable[..., object], workers: int) -> None:
    text = SCRIPT.read_text()
    tree = ast.parse(text)
    loop = next(node for node in tree.body if isinstance(node, ast.For))
    tables = "\n".join(text.splitlines()[: loop.lineno - 1])
    found = play(tables + LOOP.format(exceptions=EXCEPTIONS), workers=workers, gather_below=0)
    printed = [line for line in found.well.printed.splitlines() if not line.startswith(("hook", "retained", "metric"))]
    assert printed == ["end"], printed
