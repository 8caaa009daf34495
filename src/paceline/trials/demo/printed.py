"""Compares the printed output of two runs of a script, line by line and number by number."""

from __future__ import annotations

import re
from itertools import zip_longest

import msgspec

from paceline.trials.core.same_numbers import TOLERANCE, difference

_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")


class Line(msgspec.Struct, kw_only=True):
    """One line of both outputs; None if only the other output has that line."""

    plain: str | None
    workers: str | None
    same: bool


class Printed(msgspec.Struct, kw_only=True):
    """The comparison of both outputs. `same` is false if nothing was printed, because that proves nothing.
    `max_difference` is relative, over the numbers of lines whose words are equal."""

    same: bool
    numbers: int  # compared
    max_difference: float
    tolerance: float
    lines: list[Line]

    @property
    def first_difference(self) -> int | None:
        """The number of the first line that differs, from 1."""
        return next((number for number, line in enumerate(self.lines, 1) if not line.same), None)


def compare_printed(plain: str, workers: str) -> Printed:
    """Compares the output of `python script.py` with the same script's output on workers."""
    lines, numbers, worst = [], 0, 0.0
    for one, other in zip_longest(plain.splitlines(), workers.splitlines()):
        same = one is not None and other is not None and _NUMBER.split(one) == _NUMBER.split(other)
        if same:
            pairs = list(zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True))
            found = [difference(float(a), float(b)) for a, b in pairs]
            numbers, worst = numbers + len(found), max([worst, *found])
            same = all(value <= TOLERANCE for value in found)
        lines.append(Line(plain=one, workers=other, same=same))
    same = numbers > 0 and all(line.same for line in lines)
    return Printed(same=same, numbers=numbers, max_difference=worst, tolerance=TOLERANCE, lines=lines)
