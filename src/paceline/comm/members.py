"""Groups that lose workers and go on with those that are left.

The launcher sees a worker's end first and writes who is left, once for each generation, to the run's store. A worker
notices when it waits for the lost one. On one host every other worker gets the result of a collective that the lost
worker had done its part of (memory/shm_rendezvous.py); on several hosts, of a collective that one of them has finished
(network/elastic_channel.py). At the next one every other worker raises `Regrouping`. So all are at the same place when
they form the group anew.

A collective between two joint works is made again by `again`. In joint work (a model's call, a backward) the whole work
is done again: see `script.slicing.together`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from paceline.comm.ending import Regrouping
from paceline.errors import PeerLostError
from paceline.wire import store as say
from paceline.wire.link import LinkSocket, LinkStore

_NAPS = (0.001, 0.02)  # seconds between two looks for what others have told: the first, and the longest
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
                end_given_up()
            link.while_waiting = self.look
            try:
                connect(self.ranks.index(self._own), len(self.ranks))
                return
            except Regrouping:  # another one is gone
                self.tell(0)  # those who were connected may wait to hear it
            finally:
                link.while_waiting = None

    def look(self) -> None:
        """Raises `Regrouping` if the launcher says that a member of this generation is lost."""
        if self._has(say.left_key(self.generation + 1)):
            raise Regrouping

    def look_at_first(self) -> None:
        """The same of the first member."""
        if self.ranks[0] not in self._left():
            raise Regrouping

    def look_after_thaw(self) -> None:
        """Ends this process if the others have gone on without it, or if nobody answers. For a signal handler on the
        script's thread."""

        def look() -> None:
            try:
                left = self._left()
            except PeerLostError:
                end_given_up()
            if self._own not in left:
                end_given_up()

        self._store.link.when_free(look)

    def is_first_left(self) -> bool:
        """Whether this is the first of the workers that the launcher has not lost."""
        return self._left()[0] == self._own

    def _left(self) -> list[int]:
        newest = self.generation
        while self._has(say.left_key(newest + 1)):
            newest += 1
        return say.ranks_in(self._store.get(say.left_key(newest))) if newest else self.ranks

    def tell(self, passed: int) -> None:
        """Tells the others the number of collectives of this generation that have ended here. No more will."""
        self._store.set(say.passed_key(self.generation, self._own), str(passed).encode())

    def have_told(self, number: int) -> bool:
        """Whether a worker that makes no more collectives of this generation had finished this one."""
        told = (self._store.link.ask(say.Get(say.passed_key(self.generation, rank)))[0] for rank in self.ranks)
        return any(int(each) >= number for each in told if each is not None)

    def settle(self, passed: int) -> int:
        """The number of collectives of this generation that count, after a member of it was lost. `passed` have ended
        here. Every worker that is left calls it; waits until all of them have told how far they came.

        If another worker is lost meanwhile, some may have heard its number and others not. So the first who has found
        the highest number sets it for all."""
        self.tell(passed)
        newest, nap = self.generation + 1, _NAPS[0]
        while True:
            while self._has(say.left_key(newest + 1)):
                newest += 1
            left = say.ranks_in(self._store.get(say.left_key(newest)))
            if self._own not in left:
                end_given_up()
            keys = [say.passed_key(self.generation, rank) for rank in left]
            if self._has(*keys):
                break
            time.sleep(nap)
            nap = min(2 * nap, _NAPS[1])
        # Also what workers have told that are gone since: what one of them has finished, all had the data of.
        told = (self._store.link.ask(say.Get(say.passed_key(self.generation, rank)))[0] for rank in self.ranks)
        highest = max(int(each) for each in told if each is not None)
        return int(self._store.compare_set(say.settled_key(self.generation), b"", str(highest).encode()))

    def _has(self, *keys: str) -> bool:
        return bool(self._store.link.ask(say.Has(list(keys)))[0])


def has_room(link: LinkSocket) -> bool:
    """Whether the launcher can start workers in place of lost ones."""
    return bool(link.ask(say.Has([say.ROOM]))[0])


def again(collective: Method) -> Method:
    """For a collective whose arguments do not depend on who is in the group: outside of joint work it is made again
    when a worker is lost."""

    @functools.wraps(collective)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if group.members is None or group.redone or group.retries:
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


def end_given_up() -> NoReturn:
    """This worker is not among those that are left. Its files and its output are another's now, so nothing is flushed,
    and no clean-up of the script runs."""
    os._exit(1)


def lost_at(what: str) -> PeerLostError:
    """A worker is lost where an elastic run cannot go on without it."""
    return PeerLostError(f"A worker was lost during {what}, {say.CANNOT}.")
