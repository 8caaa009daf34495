"""SIGTERM as an exception, like SIGINT, so that an interrupted verb stops its workers and writes its record."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal ended the verb. `exit_code` is 128 plus the signal's number."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("interrupted")
        self.exit_code = exit_code


def exit_code_of(error: KeyboardInterrupt) -> int:
    """130 for Ctrl-C, 143 for SIGTERM."""
    return error.exit_code if isinstance(error, Interrupted) else 128 + signal.SIGINT


@contextmanager
def raised_on_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises Interrupted in the main thread. `launch` handles both signals itself while
    workers run. Outside the main thread, or if SIGTERM is already ignored or handled, the block changes nothing."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def held_off() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM while the block runs. Only for a last block that takes a bounded time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(128 + number)
