"""How a number reads: three digits that matter, with the unit that suits them."""

from __future__ import annotations

import math
import time
from typing import Any, Literal

Kind = Literal[
    "text", "count", "number", "seconds", "share", "change", "rate", "bytes", "speed", "moment", "flag", "times"
]
NUMERIC = ("count", "number", "seconds", "share", "change", "rate", "bytes", "speed", "moment", "times")
NOTHING = "–"


def say(value: Any, kind: Kind) -> str:
    """A value in words; whatever it is, it becomes text."""
    if value is None or value == "" or value == []:
        return NOTHING
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "text" or isinstance(value, bool) or not isinstance(value, int | float):
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if not math.isfinite(value):
        return str(value)
    return _NUMBERS[kind](value)


def seconds(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f} s"
    if size >= 0.9995:
        return f"{value:.3g} s"
    if size >= 0.9995e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs" if size else "0 s"


def rate(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else number(value)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def share(value: float) -> str:
    return f"{value * 100:.1f} %"


def change(value: float) -> str:
    return f"{value * 100:+.1f} %"


def size(value: float) -> str:
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def moment(value: float) -> str:
    """Local time, as the folder's name has it."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    except (OverflowError, ValueError, OSError):
        return NOTHING


_NUMBERS = {
    "count": lambda value: f"{value:,.0f}" if value == int(value) else number(value),
    "number": number,
    "seconds": seconds,
    "share": share,
    "change": change,
    "rate": rate,
    "bytes": size,
    "speed": lambda value: f"{size(value)}/s",
    "moment": moment,
    "times": lambda value: f"{value:.3g}×",
}
