"""The table of docs/frameworks.md: a row for each program, between two markers of the page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

from programs_run import TOLERANCE, VISION, Row

BEGIN, END = "<!-- frameworks: made by `make test-frameworks` -->", "<!-- frameworks: end -->"
HEAD = ["| framework | version | program | on 2 workers |", "|---|---|---|---|"]
_NAME = re.compile(r"\(`(\w+\.py)`\) \| \*\*(.+?)\*\*")  # of a program, and its verdict


def write(page: Path, rows: list[Row], known: set[str]) -> None:
    """Puts the rows into the table. Rows of other programs stay, if the program is still among the `known` ones."""
    text = page.read_text()
    if (found := re.search(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", text, flags=re.DOTALL)) is None:
        raise ValueError(f"{page} must have the lines {BEGIN} and {END}, in this order.")
    lines = {name[1]: line for line in found[1].splitlines() if (name := _NAME.search(line)) and name[1] in known}
    lines |= {row.program.path.name: line_of(row) for row in rows}
    ordered = sorted(lines.values(), key=str.lower)
    block = "\n".join([BEGIN, "", summary(_NAME.search(line)[2] for line in ordered), "", *HEAD, *ordered, "", END])
    page.write_text(text.replace(found[0], block))


def summary(verdicts: object) -> str:
    """Counts the verdicts."""
    counts = Counter(verdicts)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{sum(counts.values())} programs: {said}."


def line_of(row: Row) -> str:
    """The program's line of the table."""
    program = row.program
    loose = "" if program.tolerance == TOLERANCE else f" to {program.tolerance}"
    reason = f": {_in_a_cell(row.reason)}" if row.reason else ""
    what = f"{program.title} (`{program.path.name}`)"
    return f"| {program.framework} | {_version(program.package)} | {what} | **{row.verdict}**{loose}{reason} |"


def _version(package: str) -> str:
    found = distributions(name=package, path=[*sys.path, str(VISION)])
    return next((distribution.version.split("+")[0] for distribution in found), "not installed")


def _in_a_cell(text: str) -> str:
    text = re.sub(r"(/[\w.-]+)+/(?=[\w-]+\.py)", "", text)  # the program's folder means nothing to a reader
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
