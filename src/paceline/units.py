"""Formats times, sizes and rates as text, and parses sizes that a user types.

Numbers have three significant digits and a unit that fits their magnitude. Every room formats its numbers with these
functions.
"""

from __future__ import annotations

import re

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def seconds(value: float) -> str:
    """A time, given in seconds: `1,234 s`, `1.23 s`, `12.3 ms`, `123 µs`."""
    if not value:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= 0.9995 * scale:  # from here on, the smaller unit would show 1,000
            return f"{rate(value / scale)} {unit}"
    return f"{rate(value * 1e6)} µs"


def rate(value: float) -> str:
    """A number without a unit, such as samples/s: `1,234`, `12.3`."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def size(count: float) -> str:
    """A number of bytes: `1.5 KiB`, `256 MiB`."""
    for letter, scale in reversed(_SIZES.items()):
        if abs(count) >= scale:
            return f"{rate(count / scale)} {letter}iB"
    return f"{rate(count)} B"


def typed_size(count: int) -> str:
    """A size as a person types it: `24GB`, `300MB`, or bytes."""
    letter, scale = next(((k, v) for k, v in reversed(_SIZES.items()) if count % v == 0), ("", 1))
    return f"{count // scale}{letter}B" if letter else str(count)


def percent(ratio: float, *, digits: int = 1) -> str:
    """A ratio as a percentage: 0.123 is `12.3 %`."""
    return f"{ratio * 100:.{digits}f} %"


def count(number: int, noun: str) -> str:
    """A number and its noun, singular or plural: `1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_size(text: str) -> int | None:
    """The bytes of a size such as `2GB`, `512MiB` or `1.5K` (K is 1024 bytes). None if the text is not a size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    return int(float(found[1]) * _SIZES.get(found[2].upper(), 1)) if found else None
