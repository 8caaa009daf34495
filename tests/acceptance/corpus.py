"""The scripts of tests/scripts and what their headers say of them; and when two printed texts say the same.

A header is lines `# test: key=value`:

    views=batch,slice      the views in which everything printed must be the same (default: batch)
    workers=2,3,5          (default: 2,3)
    options=--batch-dim 1  of `paceline run`
    arguments=--epochs 3   of the script
    tolerance=1e-3  why    relative (default: 1e-4)
    slow=why               not in the default run
    expects one of these, and why (default: the same text and numbers as plain Python)
    refused=text           the run must be refused, with this text in the message
    right-or-refused=why   the same numbers, or a refusal before the first wrong one
    noticed=text           numbers of a slice may be printed if a notice with this text says so
    different=why          numbers can't be the same; all else must be, and workers must agree among themselves
    agree=why              plain Python's numbers differ from run to run; workers must agree among themselves
    agree-or-refused=why
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "scripts"
EXPECTATIONS = ("refused", "right-or-refused", "noticed", "different", "agree", "agree-or-refused")
_HEADER = re.compile(r"^# test: ([a-z-]+)=(.*)$", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script of the corpus."""

    path: Path
    views: tuple[str, ...]
    workers: tuple[int, ...]
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    tolerance: float
    slow: bool
    expects: str
    reason: str

    @property
    def name(self) -> str:
        return self.path.stem


def read(path: Path) -> Script:
    """The script with its header's facts. ValueError where the header says what nobody reads."""
    header = dict(_HEADER.findall(path.read_text()))
    expects = [key for key in EXPECTATIONS if key in header]
    script = Script(
        path=path,
        views=tuple(header.pop("views", "batch").split(",")),
        workers=tuple(int(n) for n in header.pop("workers", "2,3").split(",")),
        options=tuple(shlex.split(header.pop("options", ""))),
        arguments=tuple(shlex.split(header.pop("arguments", ""))),
        tolerance=float(header.pop("tolerance", "1e-4").split()[0]),
        slow=bool(header.pop("slow", "")),
        expects=expects[0] if expects else "same",
        reason=header.pop(expects[0]) if expects else "",
    )
    if header:
        raise ValueError(f"{path.name}: unknown header {sorted(header)}")
    return script


@cache
def scripts() -> list[Script]:
    return [read(path) for path in sorted(FOLDER.glob("*.py"))]


def difference(expected: str, found: str, tolerance: float) -> str:
    """The first line on which two texts differ, both ways; empty where they say the same."""
    theirs, ours = expected.splitlines(), found.splitlines()
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False), 1):
        if why := _line_difference(one, other, tolerance):
            return f"line {number} ({why}):\n    plain python: {one}\n    paceline:     {other}"
    if len(theirs) != len(ours):
        longer, who = (theirs, "plain python") if len(theirs) > len(ours) else (ours, "paceline")
        at = min(len(theirs), len(ours))
        return f"only {who} prints line {at + 1}: {longer[at]}"
    return ""


def shape(text: str) -> str:
    """The text without its numbers."""
    return _NUMBER.sub("#", text)


def _line_difference(one: str, other: str, tolerance: float) -> str:
    if _NUMBER.split(one) != _NUMBER.split(other):
        return "text differs"
    for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True):
        if a != b and not _close(a, b, tolerance):
            return f"{a} is not {b}"
    return ""


def _close(a: str, b: str, tolerance: float) -> bool:
    if re.fullmatch(r"[-+]?\d+", a) and re.fullmatch(r"[-+]?\d+", b):
        return False  # counts are exact
    x, y = float(a), float(b)
    # Numbers near zero are differences of larger ones: what is printed of them is their rounding.
    return math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance / 100)
