"""Recomputation in backward (torch.utils.checkpoint): it starts where the function started in the forward.

Torch keeps the random streams as they were before the function, and restores them. A function in which a stage of a
pipeline begins draws from streams that came from the stage before: it is recomputed with these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.script import rng
from paceline.script.seams.stage import Stage


@dataclass(slots=True)
class _Start:
    stage: Stage
    where: Any = None
    streams: Any = None  # other ones than those that torch restores

    def note(self) -> None:
        self.where = self.stage.where()


_forwards: list[_Start] = []  # of checkpoints, one inside the other


def checkpoints(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain, updated=())  # torch.compile reads the names of the arguments
    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Recomputes in backward as in forward: inside the sliced call, or outside."""
        start = _Start(stage)

        def again(*inner: Any, **named: Any) -> Any:
            with _forward(start) if start.where is None else _recomputation(start):
                return function(*inner, **named)

        return plain(again, *args, **kwargs)

    return checkpoint


def starts_here() -> None:
    """Where the streams were replaced inside a function that is to be recomputed: it is recomputed from here."""
    for start in _forwards:
        start.note()
        start.streams = rng.snapshot()


@contextmanager
def _forward(start: _Start) -> Iterator[None]:
    start.note()
    _forwards.append(start)
    try:
        yield
    finally:
        _forwards.pop()


@contextmanager
def _recomputation(start: _Start) -> Iterator[None]:
    with start.stage.back_at(start.where):
        if start.streams is None:
            yield
            return
        before = rng.snapshot()
        rng.restore(start.streams)
        try:
            yield
        finally:
            rng.restore(before)
