"""Handles of asynchronous operations: numbers, as in Horovod, that `poll` and `synchronize` take."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from paceline.horovod.engine.controller import current, required
from paceline.horovod.engine.operation import Operation

_numbers = itertools.count()
_operations: dict[int, tuple[Operation, Callable[[Any], Any] | None]] = {}  # with what makes the result of it


def submit(operation: Operation, finish: Callable[[Any], Any] | None = None) -> int:
    """Hands an operation to the background thread, and returns its handle. `finish` is applied to the result."""
    required().submit(operation)
    handle = next(_numbers)
    _operations[handle] = operation, finish
    return handle


def poll(handle: int) -> bool:
    """Whether the operation has completed, so that `synchronize` will not wait."""
    if handle not in _operations:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    if _operations[handle][0].is_done:
        return True
    hurry()
    return False


def hurry() -> None:
    """A thread waits: what is submitted is sent at once."""
    if (controller := current()) is not None:
        controller.hurry()


def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its result. HorovodInternalError if it has failed. None if there is no such
    handle, or if it was synchronized before."""
    found = _operations.pop(handle, None)
    if found is None:
        return None
    operation, finish = found
    if operation.lock.locked():
        hurry()
    result = operation.wait()
    return result if finish is None else finish(result)


def forget_all() -> None:
    """At `init`: handles of an earlier time are not valid."""
    _operations.clear()
