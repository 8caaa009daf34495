"""Sets of times as sorted disjoint intervals, in whole nanoseconds, and their arithmetic.

All questions about time lines (how long the device was busy, how much of that was hidden under other work, what the
host did in the gaps) are unions, intersections and differences of such sets. Everything is vectorised: a trace has
millions of intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_NONE: Integers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """The times from each of `starts` to each of `ends`, ends excluded. Sorted, with a gap between any two."""

    starts: Integers
    ends: Integers

    @classmethod
    def of(cls, starts: Any, ends: Any) -> Spans:
        """The union of intervals in any order, overlapping or not; an interval that ends before it begins is empty."""
        begin, end = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
        real = end > begin
        if not real.all():
            begin, end = begin[real], end[real]
        if not len(begin):
            return EMPTY
        if (begin[1:] < begin[:-1]).any():
            order = np.argsort(begin, kind="stable")
            begin, end = begin[order], end[order]
        reach = np.maximum.accumulate(end)
        first = np.empty(len(begin), dtype=bool)
        first[0] = True
        np.greater(begin[1:], reach[:-1], out=first[1:])
        last = np.append(np.flatnonzero(first)[1:] - 1, len(begin) - 1)
        return cls(begin[first], reach[last])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def length(self) -> int:
        """The total length of all intervals."""
        return int((self.ends - self.starts).sum())

    def __or__(self, other: Spans) -> Spans:
        return Spans.of(np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends]))

    def __and__(self, other: Spans) -> Spans:
        return _where_both(self, other)

    def __sub__(self, other: Spans) -> Spans:
        if not len(self) or not len(other):
            return self
        low = min(int(self.starts[0]), int(other.starts[0]))
        high = max(int(self.ends[-1]), int(other.ends[-1]))
        return _where_both(self, other.gaps(low, high))

    def gaps(self, start: int, end: int) -> Spans:
        """The times between `start` and `end` that are not covered."""
        return Spans.of(
            np.maximum(np.concatenate([[start], self.ends]), start), np.minimum(np.append(self.starts, end), end)
        )

    def covered(self, moments: Integers) -> NDArray[np.bool_]:
        """Whether each of these times lies in an interval."""
        return self.index_of(moments) >= 0

    def index_of(self, moments: Integers) -> Integers:
        """The index of the interval that contains each of these times; -1 if none does."""
        at: Integers = np.searchsorted(self.starts, moments, side="right") - 1
        inside = at >= 0
        inside[inside] = np.asarray(moments)[inside] < self.ends[at[inside]]
        return np.where(inside, at, -1)

    def length_within(self, starts: Integers, ends: Integers) -> Integers:
        """The covered length of each window from `starts` to `ends`. Windows may overlap."""
        until_end = self._length_until(np.asarray(ends))
        result: Integers = np.maximum(until_end - self._length_until(np.asarray(starts)), 0)
        return result

    def _length_until(self, moments: Integers) -> Integers:
        if not len(self):
            return np.zeros(len(moments), dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        at = np.searchsorted(self.starts, moments, side="right")
        over = np.where(at > 0, np.maximum(self.ends[at - 1] - moments, 0), 0)
        result: Integers = before[at] - over
        return result


EMPTY = Spans(_NONE, _NONE)


def _where_both(a: Spans, b: Spans) -> Spans:
    """The intersection: the times at which two intervals are open, by a running count over all starts and ends."""
    if not len(a) or not len(b):
        return EMPTY
    times = np.concatenate([a.starts, b.starts, a.ends, b.ends])
    steps = np.ones(len(times), dtype=np.int8)
    steps[len(a) + len(b) :] = -1
    # Ends sort before starts at the same time: intervals that only touch do not intersect.
    order = np.lexsort((steps, times))
    times, open_now = times[order], np.cumsum(steps[order], dtype=np.int32)
    both = np.flatnonzero(open_now == 2)
    return Spans.of(times[both], times[both + 1])
