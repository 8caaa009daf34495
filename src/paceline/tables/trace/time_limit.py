"""A time limit for computing tables, for callers that accept traces from anywhere.

A thread cannot be stopped from outside. So long computations call `go_on` between pieces: chunks of a file, tables,
some ten thousand rows of a loop. Without a limit that costs one look at a variable.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from paceline.errors import TraceError

PIECE = 1 << 16  # rows of a loop between two checks of the clock

T = TypeVar("T")


@dataclass(slots=True)
class _Limit:
    what: str
    seconds: float
    until: float
    advice: str


_limit: ContextVar[_Limit | None] = ContextVar("limit of time", default=None)


@contextmanager
def within(seconds: float, what: str, advice: str = "") -> Iterator[None]:
    """In this block and thread, `go_on` raises once `seconds` are over. Blocks may be nested: an inner block's time
    does not count for the outer one."""
    begun, outer = time.monotonic(), _limit.get()
    mine = _limit.set(_Limit(what, seconds, begun + seconds, advice))
    try:
        yield
    finally:
        _limit.reset(mine)
        if outer is not None:
            outer.until += time.monotonic() - begun


def paced(rows: Iterable[T]) -> Iterator[T]:
    """The rows, for a loop over very many of them: calls `go_on` every `PIECE` rows."""
    for number, row in enumerate(rows):
        if not number % PIECE:
            go_on()
        yield row


def go_on() -> None:
    """TraceError if the time is over."""
    limit = _limit.get()
    if limit is not None and time.monotonic() >= limit.until:
        raise TraceError(f"{limit.what} takes longer than {limit.seconds:g} s: stopped.", advice=limit.advice)
