"""The versions of the packages that a run depends on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

import paceline


def installed() -> dict[str, str]:
    """From the installed packages' metadata: importing torch for its version would take seconds."""
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "msgspec", "pyzmq"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def compared() -> dict[str, str]:
    """Those that must be equal on all hosts of a run."""
    return {"paceline": paceline.__version__, **installed()}
