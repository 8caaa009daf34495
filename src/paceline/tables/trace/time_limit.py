"""A limit on the time that tables may take, for those who make them of traces from anywhere.

Nothing can stop a thread from outside. So what may take long asks `go_on` between its pieces: each chunk of a file,
each table, some ten thousand rows of a loop. Without a limit that costs a look at a variable.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from paceline.errors import TraceError

PIECE = 1 << 16  # rows of a loop between two looks at the clock

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
    """In this block and thread, `go_on` raises once so many seconds are over. Blocks may be nested: an inner block's
    time does not count for the outer one."""
    begun, outer = time.monotonic(), _limit.get()
    mine = _limit.set(_Limit(what, seconds, begun + seconds, advice))
    try:
        yield
    finally:
        _limit.reset(mine)
        if outer is not None:
            outer.until += time.monotonic() - begun


def paced(rows: Iterable[T]) -> Iterator[T]:
    """The rows, for a loop over very many of them: asks now and then whether to go on."""
    for number, row in enumerate(rows):
        if not number % PIECE:
            go_on()
        yield row


def go_on() -> None:
    """TraceError where the time is over."""
    limit = _limit.get()
    if limit is not None and time.monotonic() >= limit.until:
        raise TraceError(f"{limit.what} takes longer than {limit.seconds:g} s: given up.", advice=limit.advice)
