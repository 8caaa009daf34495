"""Times things that several workers do together, interleaved, so that a machine that is disturbed for a while is so to
every contender alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline.comm.memory.engine import Engine

STRETCH = 4e-3  # seconds that a timed stretch should last: what is shorter is done several times
MOST_REPEATS = 200
FEWEST_ROUNDS = 3


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Contender:
    """`call` is made by every worker. `settle` waits until all calls have really ended."""

    call: Callable[[], object]
    settle: Callable[[], object] = _nothing


def time_contenders(
    contenders: Sequence[Contender], engine: Engine, *, rounds: int, seconds: float
) -> list[list[float]]:
    """For each contender the seconds of one call, by round: those of the slowest worker.

    Every worker of the engine calls it with the same contenders. Each is called a few times to warm up; then come so
    many rounds of all of them as `seconds` for each allow, three at least. When a peer is gone, the error is that of
    whoever notices first: a contender, or the engine."""
    repeats, cost = [], 0.0
    for contender in contenders:
        once = _slowest(engine, [_time(contender, engine, 1) for _ in range(2)])[-1]
        repeats.append(max(1, min(MOST_REPEATS, math.ceil(STRETCH / max(once, 1e-9)))))
        # What is done often for its shortness was timed cold: its first stretch is warm-up, too.
        cost += once * repeats[-1]
        if repeats[-1] > 1:
            _time(contender, engine, repeats[-1])
    many = max(FEWEST_ROUNDS, min(rounds, int(seconds * len(contenders) / max(cost, 1e-9))))
    samples: list[list[float]] = [[] for _ in contenders]
    for _ in range(many):
        for contender, count, mine in zip(contenders, repeats, samples, strict=True):
            mine.append(_time(contender, engine, count))
    flat = _slowest(engine, [sample for mine in samples for sample in mine])
    return [flat[many * at : many * (at + 1)] for at in range(len(contenders))]


def _time(contender: Contender, engine: Engine, repeats: int) -> float:
    engine.barrier()
    begun = time.perf_counter()
    for _ in range(repeats):
        contender.call()
    contender.settle()
    return (time.perf_counter() - begun) / repeats


def _slowest(engine: Engine, mine: Sequence[float]) -> list[float]:
    """Of every worker's numbers the largest: the same on all, so that all decide alike."""
    own = torch.tensor(mine, dtype=torch.float64)
    everybody = [torch.empty_like(own) for _ in range(engine.world)]
    engine.all_gather(own, everybody)
    return torch.stack(everybody).amax(0).tolist()
