"""Formats values of each kind as text, for terminals and pages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

from paceline.units import percent, rate, seconds, size

Numeric = Literal[
    "count", "number", "seconds", "share", "percent", "change", "rate", "bytes", "speed", "gb", "moment", "ago", "times"
]
Kind = Literal["text", "flag"] | Numeric
NUMERIC = get_args(Numeric)
NOTHING = "–"
BAR = 24  # columns of a full bar in a terminal


def say(value: Any, kind: Kind) -> str:
    """Formats a value of any type as text."""
    if value is None or value == "" or value == []:
        return NOTHING
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "text" or isinstance(value, bool) or not isinstance(value, int | float):
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if not math.isfinite(value):
        return str(value)
    return _NUMBERS[kind](value)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def gb(value: float) -> str:
    """A rate in GB/s, with at most three digits."""
    for least, digits in ((100, 0), (10, 1), (0.1, 2)):
        if value >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.1g}"


def change(value: float) -> str:
    return f"{value * 100:+.1f} %"


def moment(value: float) -> str:
    """Local time, as in the name of a record's folder."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    except (OverflowError, ValueError, OSError):
        return NOTHING


AGES = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (86400.0, 3600.0, "h"), (14 * 86400.0, 86400.0, "d"))


def ago(value: float) -> str:
    """How long ago a moment was: `3 min ago`; of one long past, the date."""
    past = time.time() - value
    if -60 < past < 1:
        return "now"
    for limit, unit, name in AGES:
        if 0 < past < limit:
            return f"{int(past / unit)} {name} ago"
    return moment(value)[:10]


_NUMBERS: dict[Kind, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}" if value == int(value) else number(value),
    "number": number,
    "seconds": seconds,
    "share": percent,
    "percent": lambda value: percent(value, digits=0),
    "change": change,
    "rate": rate,
    "bytes": size,
    "speed": lambda value: f"{size(value)}/s",
    "gb": gb,
    "moment": moment,
    "ago": ago,
    "times": lambda value: f"{value:.2f}×",
}


def bar(width: float) -> str:
    """A bar of this many columns, rounded to an eighth of a column."""
    eighths = round(width * 8)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
