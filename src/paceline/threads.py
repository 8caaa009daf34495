"""Starts Paceline's own threads, and reports what ends one of them too early.

Others wait for what such a thread does (it answers, beats or listens), and would wait for ever. In the launcher and in
agents the loop that watches the run calls `check`. A worker sets `on_death`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from paceline.errors import LaunchError

on_death: Callable[[threading.Thread, BaseException], None] | None = None
_raised: list[BaseException] = []


def start(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Starts a daemon thread, which should raise nothing."""

    def run() -> None:
        try:
            target(*args)
        except BaseException as error:
            died = LaunchError(
                f"Paceline's thread {name!r} has ended: {type(error).__name__}: {error}",
                advice="This is a bug of Paceline. Report it with the traceback above.",
            )
            died.__cause__ = error
            hand_over(died)
            if on_death is None:
                raise  # printed, as those of all threads
            on_death(threading.current_thread(), error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def hand_over(error: BaseException) -> None:
    """Lets the loop that watches the run raise this error of a thread."""
    _raised.append(error)


def check() -> None:
    """Raises what a thread has handed over, or a LaunchError if one has died."""
    if _raised:
        error = _raised[0]
        _raised.clear()
        raise error


def forget() -> None:
    """At the start of a run: threads of an earlier one do not count."""
    _raised.clear()


class Bell:
    """Wakes a thread that sleeps in poll. Any thread, and any signal handler, may ring it."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def ring(self) -> None:
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
