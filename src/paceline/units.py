"""Times, sizes and rates as text for people, and sizes as people type them.

Three significant digits, with the unit that suits the number. Every room prints numbers through these functions.
"""

from __future__ import annotations

import re

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def seconds(value: float) -> str:
    """`1,234 s`, `1.23 s`, `12.3 ms`, `123 µs`."""
    if not value:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= 0.9995 * scale:  # below that it would read 1,000 of the smaller unit
            return f"{rate(value / scale)} {unit}"
    return f"{rate(value * 1e6)} µs"


def rate(value: float) -> str:
    """Samples a second, without the unit: `1,234`, `12.3`."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def size(count: float) -> str:
    """Bytes: `1.5 KiB`, `256 MiB`."""
    for letter, scale in reversed(_SIZES.items()):
        if abs(count) >= scale:
            return f"{rate(count / scale)} {letter}iB"
    return f"{rate(count)} B"


def percent(ratio: float, *, digits: int = 1) -> str:
    """0.123 is `12.3 %`."""
    return f"{ratio * 100:.{digits}f} %"


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_size(text: str) -> int | None:
    """Bytes: `2GB`, `512MiB`, `1.5K`. A kilobyte is 1024 bytes. None where the text is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    return int(float(found[1]) * _SIZES.get(found[2].upper(), 1)) if found else None
