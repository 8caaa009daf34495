"""Packages that only some verbs need: asked for before the verb makes anything."""

from __future__ import annotations

from importlib.util import find_spec

from paceline.doctor.dependencies import OPTIONAL
from paceline.errors import UsageError


def need(extra: str, verb: str) -> None:
    """UsageError if a package of this extra is missing."""
    missing = [package.name for package in OPTIONAL if package.extra == extra and not _is_there(package.name)]
    if missing:
        raise UsageError(
            f"paceline {verb} needs packages that are not installed: {', '.join(missing)}.",
            advice=f"Type: pip install 'paceline[{extra}]'",
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
