"""Starts Paceline's own threads, and reports what ends one of them too early.

Others wait for what such a thread does (it answers, beats or listens), and would wait for ever. In the launcher and in
agents the loop that watches the run calls `check`. A worker sets `on_death`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from paceline.errors import LaunchError

on_death: Callable[[threading.Thread, BaseException], None] | None = None
_died: list[tuple[str, BaseException]] = []


def start(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Starts a daemon thread, which should raise nothing."""

    def run() -> None:
        try:
            target(*args)
        except BaseException as error:
            _died.append((name, error))
            if on_death is None:
                raise  # printed, as those of all threads
            on_death(threading.current_thread(), error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def check() -> None:
    """LaunchError if a thread has died since the last call."""
    if _died:
        name, error = _died.pop()
        _died.clear()
        raise LaunchError(
            f"Paceline's thread {name!r} has ended: {type(error).__name__}: {error}",
            advice="This is a bug of Paceline. Report it with the traceback above.",
        ) from error


def forget() -> None:
    """At the start of a run: threads of an earlier one do not count."""
    _died.clear()
