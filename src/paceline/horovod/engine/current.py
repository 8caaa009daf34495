"""The controller of this process, between `init` and `shutdown`."""

from __future__ import annotations

from paceline.horovod.engine.controller import Controller

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

_current: Controller | None = None
_dynamic = False


def current() -> Controller | None:
    return _current


def set_current(controller: Controller, *, dynamic: bool) -> None:
    """`dynamic`: process sets may be added and removed."""
    global _current, _dynamic
    _current, _dynamic = controller, dynamic or controller.settings.dynamic_process_sets


def take_current() -> Controller | None:
    """The controller, which is no longer the process's."""
    global _current
    found, _current = _current, None
    return found


def required() -> Controller:
    """The controller. ValueError before `init`."""
    if _current is None:
        raise ValueError(NOT_INITIALIZED)
    return _current


def sets_may_change() -> bool:
    return _dynamic
