"""This process among the workers of the run: Horovod's rank and size, local and cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.settings import WorkerSettings, of_this_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Ranks and sizes. `ranks` are the workers of the run that take part, in the order of their Horovod ranks."""

    ranks: tuple[int, ...]
    rank: int
    local_rank: int
    local_size: int
    cross_rank: int  # number of this host
    cross_size: int
    settings: WorkerSettings

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_one_host(self) -> bool:
        return self.cross_size == 1

    @property
    def is_homogeneous(self) -> bool:
        """Whether every host has the same number of workers, as far as this worker can tell."""
        return self.local_size * self.cross_size == self.size


def find(ranks: Sequence[int] | None = None) -> Membership:
    """The membership that the launcher has given to this process. Without a launcher the size is 1. `ranks` is a
    subset of the workers; a worker that is not in it is alone."""
    settings = of_this_process()
    chosen = tuple(ranks) if ranks else tuple(range(settings.world))
    if len(set(chosen)) != len(chosen) or any(not 0 <= rank < settings.world for rank in chosen):
        raise ValueError(f"init: {list(chosen)} are not different ranks of {settings.world} workers.")
    if settings.rank not in chosen:
        chosen = (settings.rank,)
    if len(chosen) == settings.world:
        here = settings.local_world
        hosts = settings.hosts if settings.hosts > 1 else max(1, settings.world // max(1, here))
        return Membership(
            ranks=chosen,
            rank=chosen.index(settings.rank),
            local_rank=settings.local_rank,
            local_size=here,
            cross_rank=settings.host_rank if settings.hosts > 1 else settings.rank // max(1, here),
            cross_size=hosts,
            settings=settings,
        )
    # Of other workers only the number of those on this host is known, and they have consecutive ranks.
    first = settings.rank - settings.local_rank
    local = [rank for rank in chosen if first <= rank < first + settings.local_world]
    return Membership(
        ranks=chosen,
        rank=chosen.index(settings.rank),
        local_rank=local.index(settings.rank),
        local_size=len(local),
        cross_rank=0 if len(local) == len(chosen) else settings.host_rank,
        cross_size=1 if len(local) == len(chosen) else settings.hosts,
        settings=settings,
    )
