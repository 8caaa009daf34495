"""This process among the workers of the run: Horovod's rank and size, local and cross."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.comm.ending import Regrouping
from paceline.comm.members import has_room
from paceline.errors import PeerLostError
from paceline.settings import WorkerSettings, of_this_process
from paceline.wire import store as say
from paceline.wire.link import LinkStore, link_of_this_process


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


# -- in an elastic run: which workers are left ------------------------------------------------------------------------
# The launcher writes to the run's store who is left, once for each worker that is lost (`comm/members.py`). A rank that
# starts Horovod anew may be faster than the launcher. It then waits in vain for the lost worker, until the launcher has
# written who is left, and begins again with those.


T = TypeVar("T")

_generation = 0  # the last one that this process has connected with


def is_elastic() -> bool:
    return of_this_process().run.elastic is not None and link_of_this_process() is not None


def has_news() -> bool:
    """Whether a worker was lost since this process has connected."""
    return is_elastic() and _store().check([say.left_key(_generation + 1)])


def may_grow() -> bool:
    """Whether the launcher would start workers in place of lost ones."""
    link = link_of_this_process()
    return of_this_process().run.most is not None and link is not None and has_room(link)


def connect(make: Callable[[tuple[int, ...], int], T]) -> T:
    """What `make` returns for the workers that are left and the number of their generation. Every one of them calls it;
    waits for all."""
    global _generation
    store = _store()
    while True:
        while store.check([say.left_key(_generation + 1)]):
            _generation += 1
        world, own = of_this_process().world, of_this_process().rank
        left = say.ranks_in(store.get(say.left_key(_generation))) if _generation else list(range(world))
        if own not in left:
            raise PeerLostError(f"Worker {own} was given up: the others go on without it.")
        store.link.while_waiting = _look
        try:
            return make(tuple(left), _generation)
        except Regrouping:
            continue
        except PeerLostError:  # it was lost while the shared memory was handed over
            store.link.while_waiting = None
            store.get(say.left_key(_generation + 1))
        finally:
            store.link.while_waiting = None


def _look() -> None:
    if has_news():
        raise Regrouping


def _store() -> LinkStore:
    link = link_of_this_process()
    assert link is not None
    return LinkStore(link)
