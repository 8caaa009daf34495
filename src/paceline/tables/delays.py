"""How far each worker is behind the others: the one definition of "slowest worker".

After a collective all workers look equally slow. So a worker's own time counts: its step without the time in which it
waited for other workers. Pure Python over columns of numbers, because the live line of the launcher uses it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec

from paceline.record.phases import COMMUNICATION, PHASES

OWN = tuple(phase for phase in PHASES if phase != COMMUNICATION)  # a worker's own time
NOTABLE = 0.05  # of a step: a smaller delay is not reported
MOSTLY = 0.8  # of the steps since the delay began
BEYOND = 4.0  # standard errors by which a delay exceeds zero
LASTING = 5  # a delay lasts for one step in so many, at least: fewer may be chance
FEWEST = 5  # … and for so many steps

Columns = Mapping[str, Sequence[Any]]  # of one worker's steps: the fields of `record.schema.Step`


class Delay(msgspec.Struct, kw_only=True):
    """One worker against the others."""

    rank: int
    own: float  # median seconds of its own work in a step
    behind: float  # median over steps: own time minus the median of the other workers' in the same step
    share: float  # `behind`, as a share of a step
    slow: bool  # the delay is worth reporting: it lasts until the end, in most steps
    since: int | None = None  # the step from which on the worker has been slow; `behind` is measured from there
    cause: str = ""  # the phase that is longest compared with the other workers
    excess: float = 0.0  # seconds of that phase


def delays(by_rank: Mapping[int, Columns], step_time: float, *, causes: bool = True) -> list[Delay]:
    """One row per worker, slowest first; none with a single worker. `by_rank`: the steps that count. Only steps that
    all workers made and split into phases are used. Without `causes`, only the cause of a slowest worker that is slow
    is looked for, which is faster."""
    rows = {rank: _split(columns) for rank, columns in by_rank.items()}
    common = sorted(set.intersection(*(set(mine) for mine in rows.values()))) if len(rows) > 1 else []
    if not common:
        return []
    ranks = sorted(rows)
    grid = [[rows[rank][number] for rank in ranks] for number in common]
    behind = _behind(grid)
    found = []
    for k, rank in enumerate(ranks):
        own, late = [row[k] for row in grid], [row[k] for row in behind]
        since = _since([each > NOTABLE * step_time for each in late])
        if since is not None and not _stands_out(late[since:]):
            since = None
        # The delay of a worker that became slow during the run is measured from that step on.
        lag = median(late[since or 0 :])
        found.append(
            Delay(
                rank=rank,
                own=median(own),
                behind=lag,
                share=lag / step_time if step_time > 0 else 0.0,
                slow=since is not None,
                since=None if since is None else common[since],
            )
        )
    found.sort(key=lambda each: (-each.behind, each.rank))
    for each in found if causes else found[:1]:
        if causes or each.slow:
            each.cause, each.excess = _cause(by_rank, each.rank, each.since or common[0])
    return found


def _split(columns: Columns) -> dict[int, float]:
    """Step number → seconds of own work, of the steps that were split into phases."""
    told = zip(columns["step"], columns["total"], columns[COMMUNICATION], columns["split"], strict=True)
    return {number: total - waited for number, total, waited, split in told if split}


def _behind(grid: Sequence[Sequence[float]]) -> list[list[float]]:
    """For every step and worker: its own time minus the median of the others'."""
    told = []
    for row in grid:
        order = sorted(range(len(row)), key=row.__getitem__)
        line = [0.0] * len(row)
        for place, rank in enumerate(order):
            line[rank] = row[rank] - _median_without(row, order, place)
        told.append(line)
    return told


def _median_without(row: Sequence[float], order: Sequence[int], place: int) -> float:
    """The median of a sorted row without the value at `place`, without sorting the row again."""
    left = len(order) - 1
    middle = left // 2

    def at(index: int) -> float:
        return row[order[index if index < place else index + 1]]

    return at(middle) if left % 2 else (at(middle - 1) + at(middle)) / 2


def _since(is_late: Sequence[bool]) -> int | None:
    """The first step from which to the end the worker is late in most steps; None if there are too few such steps."""
    count, late, found = len(is_late), 0, None
    for index in range(count - 1, -1, -1):
        late += is_late[index]
        if is_late[index] and late >= MOSTLY * (count - index):
            found = index
    return None if found is None or count - found < max(FEWEST, count // LASTING) else found


def _stands_out(late: Sequence[float]) -> bool:
    """Whether the mean delay is beyond the scatter of the steps. On a busy machine a worker is late for several steps
    in a row by chance: so many steps tell as little as fewer independent ones."""
    mean = fmean(late)
    apart = [each - mean for each in late]
    spread = sum(each * each for each in apart)
    if not spread:
        return True
    count = len(late)
    alike = max(sum(a * b for a, b in pairwise(apart)) / spread, 0.0)  # autocorrelation from step to step
    alike = min(alike + (1 + 3 * alike) / count, 0.99)  # short series show too little of it
    independent = max(count * (1 - alike) / (1 + alike), 1.0)
    # Few independent steps tell little of their own scatter.
    return mean * (independent * count / spread) ** 0.5 > BEYOND * (1 + 4 / independent)


def _cause(by_rank: Mapping[int, Columns], rank: int, first: int) -> tuple[str, float]:
    """The phase in which this worker is furthest behind the others: medians of each worker, then of the workers."""

    def usual(columns: Columns, part: str) -> float:
        told = zip(columns["step"], columns[part], columns["split"], strict=True)
        values = [value for number, value, split in told if split and number >= first]
        return median(values) if values else 0.0

    more = {
        part: usual(by_rank[rank], part) - median(usual(by_rank[other], part) for other in by_rank if other != rank)
        for part in OWN
    }
    part = max(more, key=lambda name: more[name])
    return part, more[part]
