"""What a module prints or logs during a call in slices: the shapes and numbers in it would be those of a slice.

What a module prints in every call is compared when it is tried out. What it prints in a later call only (each hundredth
one) is held back while that call can still be undone, and then printed by the call on the whole batch."""

from __future__ import annotations

import builtins
import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class Prints:
    """Of one call. `hold`: nothing appears before `release`."""

    def __init__(self, *, hold: bool) -> None:
        self.text = ""
        self._hold = hold
        self._held: list[Callable[[], Any]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        plain, log = builtins.print, logging.Logger.callHandlers

        def print_noted(*args: Any, **kwargs: Any) -> None:
            if kwargs.get("file") not in (None, sys.stdout, sys.stderr):
                return plain(*args, **kwargs)
            told = io.StringIO()
            plain(*args, **(kwargs | {"file": told, "flush": False}))
            text = told.getvalue()
            self._note(text, partial(plain, text, **(kwargs | {"end": ""})))

        def log_noted(logger: logging.Logger, record: logging.LogRecord) -> None:
            if is_seen(logger):
                self._note(logged(record), partial(log, logger, record))
            else:
                log(logger, record)

        builtins.print, logging.Logger.callHandlers = print_noted, log_noted  # type: ignore[assignment]
        try:
            yield
        finally:
            builtins.print, logging.Logger.callHandlers = plain, log  # type: ignore[method-assign]

    def _note(self, text: str, appear: Callable[[], Any]) -> None:
        self.text += text
        if self._hold:
            self._held.append(appear)
        else:
            appear()

    def release(self) -> None:
        held, self._held = self._held, []
        for appear in held:
            appear()


def is_seen(logger: logging.Logger) -> bool:
    """Whether somebody gets its lines, and they are a script's: torch's own tell of itself, at times once a process."""
    return logger.hasHandlers() and logger.name.split(".")[0] != "torch"


def logged(record: logging.LogRecord) -> str:
    """What counts of a line of a log: not the time."""
    return f"{record.msg} {record.args}"
