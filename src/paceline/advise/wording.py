"""Formats the numbers in findings."""

from __future__ import annotations

from paceline import units


def percent(share: float) -> str:
    """0.123 is `12 %`."""
    return units.percent(share, digits=0)


def command(mod: str) -> str:
    """The command line for a mod."""
    name, _, value = mod.partition("=")
    return f"paceline run -n {value} …" if name == "workers" else f"paceline run --mod {mod} …"


def listed(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
