"""Paceline: an ordinary training script on any number of workers, with the same numbers.

The command line is `paceline`. If you prefer an explicit API in the script:

    import paceline

    model, optimizer, loader = paceline.Mirrored().distribute(model, optimizer, loader)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.comm.torch_backend.registration import register
from paceline.script.loader_position import watch

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline import checkpoint as checkpoint
    from paceline import data as data
    from paceline.checkpoint.elastic import Elastic
    from paceline.checkpoint.load import load
    from paceline.checkpoint.save import save
    from paceline.converge.ghost_bn.module import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d, ghost
    from paceline.converge.noise.critical_batch import critical_batch
    from paceline.converge.optimizers.lamb import LAMB
    from paceline.converge.optimizers.lars import LARS
    from paceline.converge.optimizers.param_groups import no_decay
    from paceline.converge.schedules import ScaledRate
    from paceline.errors import PacelineError
    from paceline.script.seams.api import log
    from paceline.strategies.central import CentralStorage
    from paceline.strategies.mesh.mesh import Mesh
    from paceline.strategies.mirrored import Mirrored
    from paceline.strategies.one import OneDevice
    from paceline.strategies.parameter_server import ParameterServer
    from paceline.strategies.pipeline import Pipeline
    from paceline.strategies.predict import predict
    from paceline.strategies.sharded import Sharded
    from paceline.strategies.zero1 import Zero1

__all__ = [
    "LAMB",
    "LARS",
    "CentralStorage",
    "Elastic",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "Mesh",
    "Mirrored",
    "OneDevice",
    "PacelineError",
    "ParameterServer",
    "Pipeline",
    "ScaledRate",
    "Sharded",
    "Zero1",
    "__version__",
    "checkpoint",
    "critical_batch",
    "data",
    "ghost",
    "load",
    "log",
    "no_decay",
    "predict",
    "save",
]

_HOMES = {
    "CentralStorage": "paceline.strategies.central",
    "Elastic": "paceline.checkpoint.elastic",
    "GhostBatchNorm1d": "paceline.converge.ghost_bn.module",
    "GhostBatchNorm2d": "paceline.converge.ghost_bn.module",
    "GhostBatchNorm3d": "paceline.converge.ghost_bn.module",
    "LAMB": "paceline.converge.optimizers.lamb",
    "LARS": "paceline.converge.optimizers.lars",
    "Mesh": "paceline.strategies.mesh.mesh",
    "Mirrored": "paceline.strategies.mirrored",
    "OneDevice": "paceline.strategies.one",
    "PacelineError": "paceline.errors",
    "ParameterServer": "paceline.strategies.parameter_server",
    "Pipeline": "paceline.strategies.pipeline",
    "ScaledRate": "paceline.converge.schedules",
    "Sharded": "paceline.strategies.sharded",
    "Zero1": "paceline.strategies.zero1",
    "critical_batch": "paceline.converge.noise.critical_batch",
    "ghost": "paceline.converge.ghost_bn.module",
    "load": "paceline.checkpoint.load",
    "log": "paceline.script.seams.api",
    "no_decay": "paceline.converge.optimizers.param_groups",
    "predict": "paceline.strategies.predict",
    "save": "paceline.checkpoint.save",
}
_ROOMS = ("checkpoint", "data")  # packages that are imported at their first use


register()
watch()


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use: the command line never imports torch."""
    import importlib

    if name in _ROOMS:
        return importlib.import_module(f"paceline.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
