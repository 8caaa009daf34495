"""Starts, watches and stops workers. This package does not import torch in the launcher: only the zygote does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.launch.events import Event, Notice, Output, Progress, Stall
    from paceline.launch.local import check, launch
    from paceline.launch.zygote.handle import Zygote

__all__ = ["Event", "Notice", "Output", "Progress", "Stall", "Zygote", "check", "launch"]

_HOMES = {"check": "local", "launch": "local", "Zygote": "zygote.handle"}


def __getattr__(name: str) -> Any:
    """Imports a name at its first use: many verbs start no workers, and the launcher is slow to import."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'paceline.launch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"paceline.launch.{_HOMES.get(name, 'events')}"), name)
