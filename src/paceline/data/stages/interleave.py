"""Interleaving: reads several units (usually files) at a time, a block of records from each in turn.

Units are assigned to workers. If there are too few units, each is cut into parts: part k of K has the records k, k + K,
k + 2K …, so that all workers read all files and each keeps its own records.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from paceline.data.execution.thread_pool import Task, Threads
from paceline.data.meters import Meter
from paceline.data.planning.job import Where
from paceline.data.planning.nodes import Context, Cursor, Deal, Mark, Opener, Settle, Settled, fill, settle
from paceline.data.planning.order import Epoch, Order, Pieces
from paceline.data.planning.stages import Read

LOOK, SLOW = 4, 1e-3  # chunks that are timed, and the seconds for a chunk from which on threads prefetch
ENOUGH = 4  # units for each worker, so that one unit more or less makes no great difference


class Interleaved:
    """`unit` returns the unit at an index, `read` its records. `cycle` units are open at a time and give `block`
    records each in turn. `prefetch`: threads read the next chunks; None: only if reading is slow."""

    even = False  # units differ in length

    def __init__(
        self,
        order: Order,
        unit: Callable[[int], Any],
        name: Callable[[int], str],
        read: Read,
        *,
        cycle: int,
        block: int,
        prefetch: bool | None,
        meter: Meter,
    ) -> None:
        self.meter = meter
        self.order, self.unit, self.name, self.read = order, unit, name, read
        self.cycle, self.block, self.prefetch = cycle, block, prefetch
        self.chunks, self.reading = 0, 0.0  # chunks that the consumer's thread read, and the seconds that took

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        return InterleavedCursor(self, context, mark)

    def parts_for(self, world: int) -> int:
        """The number of parts that each unit is cut into."""
        units = getattr(self.order, "period", self.order.length)
        enough = world == 1 or units is None or units >= ENOUGH * world or (units >= world and units % world == 0)
        return 1 if enough else world

    def settle(self, marks: Sequence[Mark | None], below: Settle) -> Settled:
        world = len(marks)
        start = {"todo": [], "next": 0, "done": 0, "open": [], "parts": [self.parts_for(world)], "slot": 0, "given": 0}
        filled = [
            mark | {"open": [], "begun": []} if given is None or "end" in given else mark
            for mark, given in zip(fill(marks, start), marks, strict=True)
        ]
        parts = filled[0]["parts"]
        length = None if self.order.length is None else self.order.length * int(np.prod(parts))
        left = settle(filled, length)
        begun = [list(p) for mark in filled for p in (*mark["open"], *mark.get("begun", ())) if p is not None]

        def begin(context: Context) -> Mark:
            units = len(left["todo"]) + len(begun) + (10**9 if length is None else length - left["next"])
            if context.world == 1 or units >= ENOUGH * context.world:
                split, pieces, todo, following = parts, begun, left["todo"], left["next"]
            else:  # too few units are left for this number of workers: each is cut again
                cut = context.world
                split = [*parts, cut]
                pieces = [[q * cut + j, max(0, -(-(count - j) // cut))] for q, count in begun for j in range(cut)]
                todo, following = [q * cut + j for q in left["todo"] for j in range(cut)], left["next"] * cut
            return {
                "todo": todo,
                "next": following,
                "done": 0,
                "begun": pieces[context.rank :: context.world],
                "open": [],
                "parts": split,
                "slot": 0,
                "given": 0,
            }

        return begin


def residue(position: int, parts: Sequence[int]) -> int:
    """Which records of its unit a piece has: those whose number modulo the number of all parts is this residue. A part
    that was cut again has every k-th of its earlier records."""
    rest, weight = 0, 1
    modulus = int(np.prod(parts))
    inner = position % modulus
    for count in parts:
        modulus //= count
        rest += weight * (inner // modulus)
        inner %= modulus
        weight *= count
    return rest


class Piece:
    """An open piece of a unit: returns its records from number `count` on."""

    def __init__(self, node: Interleaved, position: int, epoch: Epoch, parts: Sequence[int], count: int) -> None:
        self._node = node
        self.position, self.count, self._every = position, count, int(np.prod(parts))
        self._rest = residue(position, parts)
        self.index = int(node.order.at(np.asarray([position // self._every], np.int64), epoch)[0])
        self._chunks = node.read(node.unit(self.index), self._rest + count * self._every)
        self._pool: Threads | None = None
        self._coming: Task | None = None
        self._skip = 0  # records at the start of the next chunk that belong to other workers
        self._records: list[Any] = []  # of a chunk in reverse order, so that taken records can be freed

    def read_ahead(self, pool: Threads) -> None:
        self._pool = pool
        self._coming = pool.submit(self._next_chunk)

    def take(self, count: int) -> list[Any]:
        """The next `count` records; fewer only at the end."""
        found = self._next(count)
        while len(found) < count and (chunk := self._receive()) is not None:
            self._records = list(chunk[self._skip :: self._every] if self._every > 1 else chunk)
            self._records.reverse()
            self._skip = (self._skip - len(chunk)) % self._every
            del chunk
            found += self._next(count - len(found))
        self.count += len(found)
        return found

    def _next(self, count: int) -> list[Any]:
        cut = max(0, len(self._records) - count)
        found = self._records[cut:]
        del self._records[cut:]
        found.reverse()
        return found

    def numbers(self, count: int) -> range:
        """Which records of the unit come next."""
        first = self._rest + self.count * self._every
        return range(first, first + count * self._every, self._every)

    def _receive(self) -> Sequence[Any] | None:
        if self._pool is None or self._coming is None:
            return self._read_here()
        chunk = self._coming.result()
        if chunk is not None:
            self._coming = self._pool.submit(self._next_chunk)
        return chunk

    def _next_chunk(self) -> Sequence[Any] | None:
        return next(self._chunks, None)

    def _read_here(self) -> Sequence[Any] | None:
        if self._node.prefetch is not None:
            return self._next_chunk()
        began, worked, waits = perf_counter(), thread_time(), _waits()
        chunk = self._next_chunk()
        self._node.chunks += 1
        # A slow read that never waited for input was only short of CPU time, which more threads would not change: so
        # only its CPU time counts.
        self._node.reading += perf_counter() - began if _waits() > waits else thread_time() - worked
        return chunk

    def close(self, *, wait: bool = True) -> None:
        if wait and self._coming is not None:
            self._coming.wait()  # a generator cannot be closed while a thread is in it
        if wait or self._coming is None:
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()


def _waits() -> int:
    """How often this thread has waited for a disk, a network or a lock; waiting for a core does not count."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class InterleavedCursor(Cursor):
    def __init__(self, node: Interleaved, context: Context, mark: Mark | None) -> None:
        mark = mark or {"todo": [], "next": 0, "done": 0, "open": [], "parts": [node.parts_for(context.world)]}
        self._node, self._epoch, self._parts = node, context.epoch, mark["parts"]
        every = int(np.prod(self._parts))
        self._deal = Deal(Pieces(node.order, every).length, context, mark)
        self._begun = [tuple(piece) for piece in mark.get("begun", [])]  # pieces that another worker began
        self._slot, self._given = mark.get("slot", 0), mark.get("given", 0)
        self._pool: Threads | None = None
        if node.prefetch:
            self._pool = Threads(node.cycle, "paceline-read")
        self._open: list[Piece | None] = [None if piece is None else self._piece(*piece) for piece in mark["open"]]
        self._open += [None] * (node.cycle - len(self._open))
        self._dry = False  # no more pieces
        self._names: list[tuple[int, int, range]] = []  # of the last `take`: number of records, unit, their numbers

    def _look(self) -> None:
        """Moves slow reading (a disk, a network, a compressed file) to threads."""
        node = self._node
        if node.prefetch is None and node.chunks >= LOOK:
            node.prefetch = node.reading / node.chunks > SLOW
            if node.prefetch:
                self._pool = Threads(node.cycle, "paceline-read")
                for piece in self._open:
                    if piece is not None:
                        piece.read_ahead(self._pool)

    def take(self, count: int) -> list[Any]:
        if self._node.prefetch is None:
            self._look()
        with self._node.meter.working(count):
            return self._take(count)

    def _take(self, count: int) -> list[Any]:
        found: list[Any] = []
        self._names = []
        idle = 0  # slots in a row without a unit to read
        while len(found) < count and idle < len(self._open):
            piece = self._open[self._slot]
            if piece is None:
                piece = self._open[self._slot] = self._next_piece()
            if piece is None:
                idle += 1
                self._turn()
                continue
            idle, wanted = 0, min(self._node.block - self._given, count - len(found))
            numbers = piece.numbers(wanted)
            got = piece.take(wanted)
            if got:
                found += got
                self._names.append((len(got), piece.index, numbers))
                self._given += len(got)
            if len(got) < wanted:
                piece.close()
                self._open[self._slot] = None
                self._turn()
            elif self._given == self._node.block:
                self._turn()
        return found

    def _turn(self) -> None:
        self._slot, self._given = (self._slot + 1) % len(self._open), 0

    def _next_piece(self) -> Piece | None:
        if self._begun:
            return self._piece(*self._begun.pop(0))
        if self._dry:
            return None
        positions = self._deal.take(1)
        self._dry = not len(positions)
        return None if self._dry else self._piece(int(positions[0]), 0)

    def _piece(self, position: int, count: int) -> Piece:
        piece = Piece(self._node, position, self._epoch, self._parts, count)
        if self._pool is not None:
            piece.read_ahead(self._pool)
        return piece

    def mark(self) -> Mark:
        return self._deal.mark() | {
            "begun": [list(piece) for piece in self._begun],
            "open": [None if piece is None else [piece.position, piece.count] for piece in self._open],
            "parts": self._parts,
            "slot": self._slot,
            "given": self._given,
        }

    def where(self) -> Where:
        names, name = self._names, self._node.name

        def record_name(number: int) -> str:
            for count, index, numbers in names:
                if number < count:
                    return f"record {numbers[number]} of {name(index)}"
                number -= count
            return "a record"

        return record_name

    def close(self, *, wait: bool = True) -> None:
        for piece in self._open:
            if piece is not None:
                piece.close(wait=wait)
        self._open = [None] * len(self._open)
        if self._pool is not None:
            self._pool.close(wait=wait)
