"""The order in which a worker computes micro-batches: forwards and backwards of each of its parts of the model.

With P parts for each of S workers, worker w has the stages w, w + S, w + 2·S, …: a micro-batch goes P times round the
workers. Parts are smaller than the stages of a pipeline without them, and so is the time until the last worker begins.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """A forward or a backward of one micro-batch in one part of a worker."""

    turn: int  # the micro-batch
    part: int
    is_backward: bool = False


def forwards(workers: int, turns: int, parts: int) -> list[Op]:
    """All forwards. A group of micro-batches goes through one part before the next part begins."""
    found: list[Op] = []
    first = 0
    for size in _groups(workers, turns, parts):
        found += [Op(turn, part) for part in range(parts) for turn in range(first, first + size)]
        first += size
    return found


def _groups(workers: int, turns: int, parts: int) -> list[int]:
    """The sizes of groups. A worker gets back a micro-batch for its next part when all workers have had it: a group of
    fewer micro-batches than workers would let workers wait."""
    many = 1 if parts == 1 else max(turns // workers, 1)
    return [turns // many + (number < turns % many) for number in range(many)]


def backwards(workers: int, turns: int, parts: int) -> list[Op]:
    """All backwards: micro-batches in the order of their forwards, parts in reverse."""
    return [Op(op.turn, parts - 1 - op.part, True) for op in forwards(workers, turns, parts)]


def training(workers: int, worker: int, turns: int, parts: int, *, few_in_flight: bool) -> list[Op]:
    """The order of a training step. `few_in_flight`: a backward follows each forward (1F1B), after as many forwards as
    the first backward takes to come; otherwise all backwards follow all forwards (GPipe)."""
    forth, back = forwards(workers, turns, parts), backwards(workers, turns, parts)
    ahead = len(forth)
    if few_in_flight:
        behind = workers - 1 - worker
        ahead = min(ahead, behind if parts == 1 else 2 * behind + (parts - 1) * _groups(workers, turns, parts)[0])
    pairs = zip(forth[ahead:], back, strict=False)
    return [*forth[:ahead], *(op for pair in pairs for op in pair), *back[len(forth) - ahead :]]


def bubble(workers: int, turns: int, parts: int = 1) -> float:
    """The share of the time in which a worker waits, if all stages take the same time."""
    return (workers - 1) / (turns * parts + workers - 1)
