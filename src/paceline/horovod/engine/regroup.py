"""In an elastic run: which workers are left, and connecting with them.

The launcher writes to the run's store who is left, once for each worker that is lost (`comm/members.py`). A rank
that starts Horovod anew may be faster than the launcher. It then waits in vain for the lost worker, until the launcher
has written who is left, and begins again with those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paceline.comm.ending import Regrouping
from paceline.comm.members import has_room
from paceline.errors import PeerLostError
from paceline.settings import of_this_process
from paceline.wire import store as say
from paceline.wire.link import LinkStore, link_of_this_process

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
