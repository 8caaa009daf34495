"""Moments of a run, on the clock that counts: the host's, or the GPU's where a GPU does the work.

A host that puts work on a GPU does not wait for it: its own clock says how long the calls took, not the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

Mark = Any  # a number of seconds, or a CUDA event


def mark() -> Mark:
    """This moment: of the GPU's current stream, if the process uses a GPU."""
    if not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(marks: Sequence[Mark]) -> list[float]:
    """The seconds from each mark to the next. Waits for the GPU's last mark."""
    if marks and isinstance(marks[-1], torch.cuda.Event):
        marks[-1].synchronize()
    return [_between(start, end) for start, end in pairwise(marks)]


def _between(start: Mark, end: Mark) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    mixed = isinstance(start, float) or isinstance(end, float)  # the script took up its GPU in between
    return 0.0 if mixed else start.elapsed_time(end) / 1000.0


class Waits:
    """Adds up waits. On a GPU a wait is the time in which the current stream stands still."""

    def __init__(self, clock: Callable[[], Mark] = mark) -> None:
        self._clock, self._spans = clock, list[tuple[Mark, Mark]]()

    @contextmanager
    def one(self) -> Iterator[None]:
        start = self._clock()
        yield
        self._spans.append((start, self._clock()))

    def seconds(self) -> float:
        return sum(sum(seconds_between(span)) for span in self._spans)
