"""Groups that lose workers and go on with those that are left.

The launcher sees a worker's end first and writes who is left, once for each generation, to the run's store. A worker
notices when it waits for the lost one. Of a collective that the lost worker had done its part of, every other worker
gets the result (memory/shm_rendezvous.py); at the first one that it had not, every other worker raises `Regrouping`. So
all are at the same place when they form the group anew.

A collective between two joint works is made again by `again`. In joint work (a model's call, a backward) the whole work
is done again: see `script.slicing.together`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.comm.called_off import Regrouping
from paceline.comm.link import messages as say
from paceline.comm.link.client import LinkSocket, LinkStore
from paceline.errors import PeerLostError

Method = TypeVar("Method", bound=Callable[..., Any])


class Members:
    """Who is in the group of this worker now, and in which order."""

    def __init__(self, store: LinkStore, rank: int, world: int) -> None:
        self._store, self._own = store, rank
        self.generation = 0
        self.ranks = list(range(world))  # the first ranks of the workers that are left: names in messages and files

    def form(self, connect: Callable[[int, int], None], *, first: bool = False) -> None:
        """Calls `connect` with this worker's rank and the number of workers, until all that are left are connected.
        Every one of them calls it; waits for all. Waits for the launcher to say who they are, unless it is the `first`
        group."""
        link = self._store.link
        while True:
            if not first:
                self.generation += 1
                self.ranks = say.ranks_in(self._store.get(say.left_key(self.generation)))
            first = False
            if self._own not in self.ranks:
                raise PeerLostError(f"Worker {self._own} was given up: the others go on without it.")
            link.while_waiting = self._look
            try:
                connect(self.ranks.index(self._own), len(self.ranks))
                return
            except Regrouping:  # another one is gone
                continue
            finally:
                link.while_waiting = None

    def _look(self) -> None:
        if self._store.link.ask(say.Has([say.left_key(self.generation + 1)]))[0]:
            raise Regrouping


def has_room(link: LinkSocket) -> bool:
    """Whether the launcher can start workers in place of lost ones."""
    return bool(link.ask(say.Has([say.ROOM]))[0])


def again(collective: Method) -> Method:
    """For a collective whose arguments do not depend on who is in the group: outside of joint work it is made again
    when a worker is lost."""

    @functools.wraps(collective)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if group.members is None or group.guarded or group.retries:
            return collective(group, *args, **kwargs)
        group.retries = True
        try:
            while True:
                try:
                    return collective(group, *args, **kwargs)
                except Regrouping:
                    group.regroup()
        finally:
            group.retries = False

    return call  # type: ignore[return-value]


def lost_at(what: str) -> PeerLostError:
    """A worker is lost where an elastic run cannot go on without it."""
    return PeerLostError(f"A worker was lost during {what}, which the others cannot do again without it.")
