"""Runs the jobs of a stage, one for each batch or sample: in the consumer's thread, or several at a time in a pool.

Results come in the order in which their samples were read. With `deterministic=False` the first result that is ready
comes first, and the mark lists which of the jobs that were read are delivered already.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import torch

from paceline.data.error_policy import LostSamples
from paceline.data.meters import Meter
from paceline.data.planning.job import NOTHING, Slice, Token, Where, Work
from paceline.data.planning.nodes import Context, Cursor, Mark, Opener, Settle, Settled
from paceline.data.planning.stages import Last
from paceline.errors import UsageError
from paceline.script import tree


class Ticket(Protocol):
    """A job in a pool."""

    def done(self) -> bool: ...

    def result(self) -> Any: ...

    def cancel(self) -> None:
        """The result is not needed any more."""
        ...


class Pool(Protocol):
    """Runs jobs in threads or processes. Accepts `room` more jobs without waiting."""

    def room(self, waiting: int) -> int: ...

    def submit(self, keys: Any, where: Where, token: Token) -> Ticket: ...

    def wait_any(self, tickets: Sequence[Ticket]) -> int:
        """Waits until a job is done, and returns its number."""
        ...

    def given(self, flying: Sequence[Ticket]) -> None:
        """A result was delivered, and the jobs `flying` are running: the pool may change its setting."""
        ...


class Pools(Protocol):
    """Chooses the pool of a stage when the cost of its jobs is known; None: jobs run in the consumer's thread."""

    @property
    def at_once(self) -> bool: ...

    @property
    def wanted(self) -> bool: ...

    @property
    def elsewhere(self) -> bool: ...

    def choose(self, jobs: Jobs, meter: Meter) -> Pool | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The node of a stage's jobs: `size` samples make a batch; None: one job for each sample."""

    work: Work
    losses: LostSamples
    meter: Meter
    size: int | None = None
    last: Last = "keep"
    deterministic: bool = True
    pools: Pools | None = None

    even = True

    @property
    def can_be_parted(self) -> bool:
        """Whether each row of a batch depends only on its own sample."""
        work = self.work
        alone = work.collate is None and not work.after and all(step.on_error == "raise" for step in work.steps)
        return self.size is not None and alone

    @property
    def costly(self) -> bool:
        """Whether making a batch costs more than a gather, and may run outside the consumer's thread: jobs with
        kind="here" may draw from the script's random streams."""
        return self.work.gather is None and self.pools is not None and self.pools.elsewhere

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        given: list[int] = []
        if mark is not None and "again" in mark:
            mark, given = mark["again"], mark["given"]
        return JobsCursor(self, up(context, mark), context, given)

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        if any(mark is not None and "again" in mark for mark in marks):
            raise UsageError(
                "restore() on another number of workers is not possible with deterministic=False.",
                advice="Restore on the same number of workers, or leave out deterministic=False.",
            )
        return below(marks)


@dataclass(frozen=True, slots=True)
class Rows:
    """This worker's rows of a batch of `size` rows; one borrowed row if the worker has none."""

    value: Any
    size: int


@dataclass(slots=True)
class Flying:
    """A running job: its number, and the marks of the stage before it, before and after the job's samples were read."""

    number: int
    ticket: Ticket
    before: Mark
    after: Mark
    size: int  # of the batch


class JobsCursor(Cursor):
    """Runs the first jobs in the consumer's thread, and asks for a pool when their cost is known."""

    def __init__(self, node: Jobs, up: Cursor, context: Context, given: list[int]) -> None:
        self._node, self._up, self._meter = node, up, node.meter
        self._who = (*context.epoch, context.rank)
        self._seeded = node.work.seeded
        self._place = context.place if context.parted and node.size is not None else None
        self._ordered = node.deterministic or context.ordered
        self._flying: deque[Flying] = deque()
        self._pool: Pool | None = None
        self._chosen = node.pools is None
        self._mark: Mark | None = None  # None: the mark of the stage before
        self._number = 0  # of the next job
        self._given = set(given)  # numbers of jobs that were delivered before an earlier job
        self._ended = False
        self._where: Where | None = None

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            pools = self._node.pools
            if not self._chosen and pools is not None and (pools.at_once or (self._meter.known and pools.wanted)):
                self._chosen = True
                self._pool = pools.choose(self._node, self._meter)
            if self._pool is not None or self._given:
                result = self._from_pool() if self._pool is not None else self._drop_given()
                if result is NOTHING:
                    break
                if result is not None:
                    found.append(result)
            elif not self._do_here(count - len(found), found):
                break
        return found

    # -- in the consumer's thread ----------------------------------------------------------------------------------

    def _do_here(self, count: int, found: list[Any]) -> bool:
        """One batch, or up to `count` samples. False at the end of the stream."""
        node, size = self._node, self._node.size
        if size is None and self._seeded:
            count = 1  # each sample has its own random numbers
        token = self._token()
        with self._meter.waiting():
            keys = self._up.take(count if size is None else size)
        if not len(keys) or (size is not None and len(keys) < size and node.last == "drop"):
            return False
        where = self._where = self._up.where()
        with self._meter.working(len(keys)):
            if size is None:
                made = list(node.work.on_each(keys, where, node.losses, token))
                found += made
                if len(made) < len(keys):
                    self._where = None
                return len(keys) == count
            batch = node.work.do(self._own(keys), where, node.losses, token=token)
        if batch is not NOTHING:
            found.append(self._with_size(batch, len(keys)))
            if self._meter.bytes < 0:
                self._meter.bytes = size_of(batch)
        return len(keys) == size

    # -- in a pool -------------------------------------------------------------------------------------------------

    def _from_pool(self) -> Any:
        """The next result; None if it was left out, NOTHING at the end."""
        pool = self._pool
        assert pool is not None
        self._hand_over(pool.room(len(self._flying)))
        if not self._flying:
            return NOTHING
        number = 0 if self._ordered else pool.wait_any([flying.ticket for flying in self._flying])
        flying = self._flying[number]
        with self._meter.idling():
            result = flying.ticket.result()
        del self._flying[number]
        self._meter.given += 1
        self._where = None
        self._note(flying)
        pool.given([other.ticket for other in self._flying])
        return None if result is NOTHING else self._with_size(result, flying.size)

    def _hand_over(self, room: int) -> None:
        size, work = self._node.size or 1, self._node
        while room > 0 and not self._ended:
            before, token = self._up.mark(), self._token()
            with self._meter.waiting():
                keys = self._up.take(size)
            self._ended = len(keys) < size
            if not len(keys) or (self._ended and work.size is not None and work.last == "drop"):
                self._ended = True
                return
            number, self._number = self._number, self._number + 1
            if number in self._given:
                continue
            assert self._pool is not None
            ticket = self._pool.submit(self._own(keys), self._up.where(), token)
            self._flying.append(Flying(number, ticket, before, self._up.mark(), len(keys)))
            room -= 1

    def _drop_given(self) -> Any:
        """Resumes from a mark of `deterministic=False` without a pool: jobs that were delivered are read and
        dropped."""
        token = self._token()
        keys = self._up.take(self._node.size or 1)
        number, self._number = self._number, self._number + 1
        if not len(keys):
            return NOTHING
        if number in self._given:
            self._given.discard(number)
            return None
        result = self._node.work.do(self._own(keys), self._up.where(), self._node.losses, token=token)
        return None if result is NOTHING else self._with_size(result, len(keys))

    def _own(self, keys: Any) -> Any:
        """The keys of the rows that this worker makes."""
        if self._place is None:
            return keys
        (rank, world), count = self._place, len(keys)
        first, last = count * rank // world, count * (rank + 1) // world
        return Slice(keys[first:last], first) if last > first else Slice(keys[:1], 0)

    def _with_size(self, batch: Any, size: int) -> Any:
        return batch if self._place is None else Rows(batch, size)

    def _note(self, flying: Flying) -> None:
        """Updates the mark after `flying` was delivered: the position of the oldest running job, without the later jobs
        that were delivered."""
        self._given.add(flying.number)
        oldest = self._flying[0] if self._flying else None
        first, base = (oldest.number, oldest.before) if oldest else (self._number, self._up.mark())
        self._given = {number for number in self._given if number >= first}
        self._mark = _less(base, first, self._given)

    def _token(self) -> Token:
        """Made from the position in the stream: unique for every job, and the same when the stream is read again."""
        return (*self._who, zlib.crc32(msgspec.msgpack.encode(self._up.mark()))) if self._seeded else ()

    def ready(self) -> bool:
        return self._node.size is None and self._pool is None and self._up.ready()

    # -- position --------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        return _less(self._up.mark(), self._number, self._given) if self._mark is None else self._mark

    def where(self) -> Where:
        return Cursor.where(self) if self._where is None or self._node.size is not None else self._where

    def close(self, *, wait: bool = True) -> None:
        for flying in self._flying:
            flying.ticket.cancel()
        self._up.close(wait=wait)


def _less(base: Mark, first: int, given: set[int]) -> Mark:
    """A mark that resumes from `base`, without the jobs that were delivered."""
    return {"again": base, "given": sorted(number - first for number in given)} if given else base


def size_of(value: Any) -> int:
    """Bytes of the tensors and strings in a value."""
    leaves = tree.leaves(value)
    return sum(
        leaf.nbytes if isinstance(leaf, torch.Tensor) else len(leaf) if isinstance(leaf, (bytes, str)) else 0
        for leaf in leaves
    )
