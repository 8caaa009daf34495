"""What becomes of a run whose record can no longer be written: the disk is full, the folder is gone or read-only.

Nothing that Paceline writes may end a training run. Where somebody listens (in each worker, and in the launcher), the
first write that fails is told, once, and recording stops in this process; the run goes on. Where nobody listens, a
write that fails raises RecordError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import RecordError
from paceline.record.folder import unwritable

Tell = Callable[[RecordError], None]


@dataclass(slots=True)
class _Listener:
    tell: Tell
    why: str = ""  # recording has stopped; empty: it has not


_listeners: list[_Listener] = []  # of this process, the innermost last: a verb, and the run that it has launched
_told = False  # by any of them


def listen(tell: Tell) -> None:
    """From now on, and for the rest of this process. Replaces all earlier listeners: a fork has those of its parent."""
    global _told
    _listeners[:], _told = [_Listener(tell)], False


@contextlib.contextmanager
def listening(tell: Tell) -> Iterator[None]:
    """`tell` is called at most once inside the block, and not at all if the listener of an enclosing block was."""
    global _told
    listener = _Listener(tell)
    _listeners.append(listener)
    try:
        yield
    finally:
        if listener in _listeners:
            _listeners.remove(listener)
        _told = _told and bool(_listeners)


def stop(path: Path, error: OSError) -> None:
    """A write failed. Raises RecordError where nobody listens."""
    if not _listeners:
        raise unwritable(path, error) from error
    stop_for(unwritable(path, error))


def stop_for(error: RecordError) -> None:
    """The same, where another process (a worker) has met the error, or where it was met before."""
    global _told
    if not _listeners:
        raise error
    listener = _listeners[-1]
    listener.why = listener.why or error.message
    if not _told:
        _told = True
        listener.tell(error)


def is_stopped() -> bool:
    """Whether this process no longer records the present run."""
    return bool(_listeners) and _listeners[-1].why != ""


def why() -> str:
    """Why this process no longer records the present run; empty if it does."""
    return _listeners[-1].why if _listeners else ""
