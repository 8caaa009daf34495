"""Paceline: an ordinary training script on any number of workers, with the same numbers.

The command line is `paceline`; this is the small API for those who like to see it in the script:

    import paceline as pl

    model, optimizer, loader = pl.Mirrored().distribute(model, optimizer, loader)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.comm.registration import register

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline.converge.critical import critical_batch
    from paceline.converge.ghost import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d, ghost
    from paceline.converge.groups import no_decay
    from paceline.converge.lamb import LAMB
    from paceline.converge.lars import LARS
    from paceline.converge.schedules import ScaledRate
    from paceline.errors import PacelineError
    from paceline.script.seams.api import log
    from paceline.strategies.mirrored import Mirrored

__all__ = [
    "LAMB",
    "LARS",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "Mirrored",
    "PacelineError",
    "ScaledRate",
    "__version__",
    "critical_batch",
    "ghost",
    "log",
    "no_decay",
]

_HOMES = {
    "GhostBatchNorm1d": "paceline.converge.ghost",
    "GhostBatchNorm2d": "paceline.converge.ghost",
    "GhostBatchNorm3d": "paceline.converge.ghost",
    "LAMB": "paceline.converge.lamb",
    "LARS": "paceline.converge.lars",
    "Mirrored": "paceline.strategies.mirrored",
    "PacelineError": "paceline.errors",
    "ScaledRate": "paceline.converge.schedules",
    "critical_batch": "paceline.converge.critical",
    "ghost": "paceline.converge.ghost",
    "log": "paceline.script.seams.api",
    "no_decay": "paceline.converge.groups",
}


register()


def __getattr__(name: str) -> Any:
    """Names are imported when first used: the command line has no use for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
