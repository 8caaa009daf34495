"""Times joint operations of several workers in interleaved rounds, so that a disturbance of the machine affects all
contenders alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

STRETCH = 4e-3  # seconds: minimum length of a timed sample; a shorter call is repeated
MOST_REPEATS = 200
FEWEST_ROUNDS = 3


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Contender:
    """Every worker makes `call`. `settle` waits until all calls have really finished (on a GPU, too)."""

    call: Callable[[], object]
    settle: Callable[[], object] = _nothing


def time_contenders(
    contenders: Sequence[Contender], engine: Together, *, rounds: int, seconds: float
) -> list[list[float]]:
    """For each contender the seconds per call in each round, on the slowest worker.

    Every worker of the engine calls it with the same contenders. Each contender is called a few times as warm-up. Then
    follow at most `rounds` rounds, at least three, as many as fit into `seconds` per contender. If a peer is gone, the
    contender or the engine raises the error, whichever notices first."""
    repeats, cost = [], 0.0
    for contender in contenders:
        once = _slowest(engine, [_time(contender, engine, 1) for _ in range(2)])[-1]
        repeats.append(max(1, min(MOST_REPEATS, math.ceil(STRETCH / max(once, 1e-9)))))
        # A short call was timed cold: its first repeated sample is warm-up, too.
        cost += once * repeats[-1]
        if repeats[-1] > 1:
            _time(contender, engine, repeats[-1])
    round_count = max(FEWEST_ROUNDS, min(rounds, int(seconds * len(contenders) / max(cost, 1e-9))))
    samples: list[list[float]] = [[] for _ in contenders]
    for _ in range(round_count):
        for contender, count, mine in zip(contenders, repeats, samples, strict=True):
            mine.append(_time(contender, engine, count))
    flat = _slowest(engine, [sample for mine in samples for sample in mine])
    return [flat[round_count * at : round_count * (at + 1)] for at in range(len(contenders))]


def _time(contender: Contender, engine: Together, repeats: int) -> float:
    engine.barrier()
    begun = time.perf_counter()
    for _ in range(repeats):
        contender.call()
    contender.settle()
    return (time.perf_counter() - begun) / repeats


def _slowest(engine: Together, mine: Sequence[float]) -> list[float]:
    """The elementwise maximum over all workers. All workers get the same result and so take the same decisions."""
    own = torch.tensor(mine, dtype=torch.float64)
    gathered = [torch.empty_like(own) for _ in range(engine.world)]
    engine.all_gather(own, gathered)
    return torch.stack(gathered).amax(0).tolist()


# -- what measuring workers need of each other ------------------------------------------------------------------------


class Together(Protocol):
    """A group of workers: through the memory of one host (`MemoryEngine`), or over Gloo."""

    rank: int
    world: int

    def barrier(self) -> None: ...
    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None: ...
    def gather_bytes(self, raw: bytes) -> list[bytes]: ...


class OverGloo:
    """The group of a Gloo process group, whose workers are on several hosts."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = group.rank()
        self.world: int = group.size()

    def barrier(self) -> None:
        self._group.barrier().wait()

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        self._group.allgather([list(into)], [own]).wait()

    def gather_bytes(self, raw: bytes) -> list[bytes]:
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world)]
        self.all_gather(torch.tensor([len(raw)]), sizes)
        lengths = [int(each) for each in sizes]
        longest = max(lengths)
        if not longest:
            return [b""] * self.world
        own = torch.frombuffer(bytearray(raw.ljust(longest, b"\0")), dtype=torch.uint8)
        into = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        self.all_gather(own, into)
        return [piece.numpy().tobytes()[:length] for piece, length in zip(into, lengths, strict=True)]
