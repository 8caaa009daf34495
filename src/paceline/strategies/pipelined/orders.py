"""The order in which a worker computes micro-batches: forwards and backwards of each of its parts of the model.

With P parts for each of S workers, worker w has the stages w, w + S, w + 2·S, …: a micro-batch goes P times round the
workers. Parts are smaller than the stages of a pipeline without them, and so is the time until the last worker begins.
"""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = 2.0  # times a forward


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


def bubble(workers: int, turns: int, parts: int = 1, *, few_in_flight: bool = True) -> float:
    """The share of the time in which a worker waits, if all stages take the same time and messages take none: plays the
    schedule. It is (S − 1) / (M·P + S − 1) for S workers and P parts, if the number M of micro-batches is a multiple of
    S or P is 1. RuntimeError if all workers would wait for each other."""
    orders = [training(workers, w, turns, parts, few_in_flight=few_in_flight) for w in range(workers)]
    ends: dict[tuple[int, int, bool], float] = {}  # by micro-batch, stage and direction
    clock, place = [0.0] * workers, [0] * workers
    while sum(place) < 2 * workers * turns * parts:
        before = sum(place)
        for worker, order in enumerate(orders):
            while place[worker] < len(order):
                op = order[place[worker]]
                stage = op.part * workers + worker
                needed = _needed(op, stage, workers * parts - 1)
                if needed is not None and needed not in ends:
                    break
                begin = max(clock[worker], 0.0 if needed is None else ends[needed])
                clock[worker] = ends[op.turn, stage, op.is_backward] = begin + (BACKWARD if op.is_backward else 1.0)
                place[worker] += 1
        if sum(place) == before:
            raise RuntimeError(f"{workers} workers with {parts} parts and {turns} micro-batches wait for each other.")
    return 1 - (1.0 + BACKWARD) * turns * parts / max(clock)


def _needed(op: Op, stage: int, last: int) -> tuple[int, int, bool] | None:
    """What must have ended before this begins, on whatever worker."""
    if op.is_backward:
        return (op.turn, stage, False) if stage == last else (op.turn, stage + 1, True)
    return (op.turn, stage - 1, False) if stage else None
