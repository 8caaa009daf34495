"""The table of docs/frameworks.md: a row for each program, between two markers of the page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

from programs_run import TOLERANCE, VISION, Row

BEGIN, END = "<!-- frameworks: made by `make test-frameworks` -->", "<!-- frameworks: end -->"


def write(page: Path, rows: list[Row]) -> None:
    """Replaces what the page has between the markers."""
    text = page.read_text()
    block = f"{BEGIN}\n\n{summary(rows)}\n\n{table(rows)}\n\n{END}"
    replaced, count = re.subn(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} must have the lines {BEGIN} and {END} once, in this order.")
    page.write_text(replaced)


def summary(rows: list[Row]) -> str:
    """Counts the verdicts."""
    counts = Counter(row.verdict for row in rows)
    return f"{len(rows)} programs: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "."


def table(rows: list[Row]) -> str:
    """The rows, in the order of their frameworks."""
    lines = ["| framework | version | program | on 2 workers |", "|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row.program.framework.lower(), row.program.path.stem)):
        program = row.program
        loose = "" if program.tolerance == TOLERANCE else f" to {program.tolerance}"
        said = f"**{row.verdict}**{loose}" + (f": {_in_a_cell(row.reason)}" if row.reason else "")
        lines.append(
            f"| {program.framework} | {_version(program.package)} | {program.title} (`{program.path.name}`) | {said} |"
        )
    return "\n".join(lines)


def _version(package: str) -> str:
    found = distributions(name=package, path=[*sys.path, str(VISION)])
    return next((distribution.version for distribution in found), "not installed")


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
