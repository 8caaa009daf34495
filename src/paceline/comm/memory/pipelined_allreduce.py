"""Pipelined all-reduce through shared memory: copy-in, addition and copy-out of different rows overlap.

A row has one piece per worker. In turn `k` a worker copies in its row `k` (the piece of each peer goes to the slot that
this peer reads), sums its own piece of row `k - 1`, and copies out the sums of row `k - 2`. One signal per turn
announces all three steps. So a wait concerns data of the previous turn, and a peer that is late by less than one turn
delays no worker.

Three rows of slots are enough. A row of slots is written again three turns later: by then the signals of the peers have
confirmed that they have summed the old row, and that they have copied out the old sums. The same holds between two
calls, because a worker that begins a call has finished the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from paceline.comm.memory.shm_rendezvous import Meeting

PIECE = 512 << 10  # bytes: small enough to be in the cache when a peer reads it
ROW = 2 << 20  # bytes: upper limit for the pieces of all workers together
TURNS = 3  # rows of slots
ALIGN = 64  # bytes
Reduce = Callable[[torch.Tensor, torch.Tensor], Any]  # reduces the second tensor into the first
Row = Sequence[torch.Tensor]  # pieces by worker


def add(into: torch.Tensor, other: torch.Tensor) -> None:
    into.add_(other)


def space_for(world: int) -> int:
    """The bytes of shared memory that a relay of `world` workers needs."""
    return TURNS * world * world * _piece(world)


def _piece(world: int) -> int:
    return min(PIECE, ROW // world) // ALIGN * ALIGN


class Relay:
    """The pipelined all-reduce of one group. `space` is the same shared memory on every worker."""

    def __init__(self, meeting: Meeting, space: torch.Tensor) -> None:
        self._meeting, self._space = meeting, space
        self._rank, self._world = meeting.rank, meeting.world
        self._peers = [(self._rank + step) % self._world for step in range(1, self._world)]  # rotated: spreads the load
        self._slots: dict[torch.dtype, list[list[Row]]] = {}  # by turn, writer, owner of the piece

    def all_reduce(self, flat: torch.Tensor, reduce: Reduce) -> None:
        """Reduces `flat`, of any size, in place. Every worker calls it, after `meeting.call`; waits for all."""
        meeting, rank, peers = self._meeting, self._rank, self._peers
        rows = list(self._rows(flat))
        slots = self._slots_of(flat.dtype)
        for turn in range(len(rows) + 2):
            if turn < len(rows):
                own_slots = slots[turn % TURNS][rank]
                for peer in peers:
                    _fit(own_slots[peer], rows[turn][peer]).copy_(rows[turn][peer])
            if turn:
                for peer in peers:
                    meeting.wait(peer)
            if 1 <= turn <= len(rows):
                row, own = slots[(turn - 1) % TURNS], rows[turn - 1][rank]
                for peer in peers:
                    reduce(own, _fit(row[peer][rank], own))
                _fit(row[rank][rank], own).copy_(own)
            if turn <= len(rows):
                meeting.signal()
            if turn >= 2:
                row = slots[(turn - 2) % TURNS]
                for peer in peers:
                    into = rows[turn - 2][peer]
                    into.copy_(_fit(row[peer][peer], into))

    def _rows(self, flat: torch.Tensor) -> Iterator[Row]:
        piece = _piece(self._world) // flat.element_size()
        count = flat.numel() // (piece * self._world)
        whole = count * piece * self._world
        for row in flat[:whole].view(count, self._world, piece).unbind():
            yield row.unbind()
        if whole < flat.numel():
            yield flat[whole:].tensor_split(self._world)

    def _slots_of(self, dtype: torch.dtype) -> list[list[Row]]:
        if dtype not in self._slots:
            with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
                slots = self._space.view(dtype).view(TURNS, self._world, self._world, -1)
                self._slots[dtype] = [[row.unbind() for row in turn.unbind()] for turn in slots.unbind()]
        return self._slots[dtype]


def _fit(slot: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    return slot if slot.numel() == piece.numel() else slot[: piece.numel()]
