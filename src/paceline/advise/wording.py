"""Formats the numbers in findings."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Three significant digits, with a suitable unit."""
    if value >= 1:
        return f"{value:.3g} s"
    if value >= 1e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs"


def percent(share: float) -> str:
    """0.123 is `12 %`."""
    return f"{share * 100:.0f} %"


def size(count: float) -> str:
    """A number of bytes, with a suitable unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def command(mod: str) -> str:
    """The command line for a mod."""
    name, _, value = mod.partition("=")
    return f"paceline run -n {value} …" if name == "workers" else f"paceline run --mod {mod} …"


def listed(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
