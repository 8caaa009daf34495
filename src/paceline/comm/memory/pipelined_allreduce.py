"""Sums that pass through shared memory in rows, so that nobody stands still while another one works.

A row has a piece for every worker. In turn `k` a worker brings its row `k` (to each peer the piece that is the peer's
to add up), adds up its own piece of row `k - 1`, and takes home the sums of row `k - 2`; one signal a turn says that
all of it is done. So each signal is about what was written a turn ago, and a peer that is late by less than that holds
up nobody.

Three rows of slots are enough. A row is brought again three turns later: by then the peers' signals have said that they
have added it up. A sum is put down three turns after the last one in its place: by then they have taken it home. The
same holds from one call to the next, since who begins a call has ended the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from paceline.comm.memory.shm_rendezvous import Meeting

PIECE = 512 << 10  # bytes: what was written is still in the cache when it is read
ROW = 2 << 20  # … of all workers' pieces together, at most
TURNS = 3
ALIGN = 64
Reduce = Callable[[torch.Tensor, torch.Tensor], Any]  # takes the second into the first
Row = Sequence[torch.Tensor]  # by worker


def add(into: torch.Tensor, other: torch.Tensor) -> None:
    into.add_(other)


def space_for(world: int) -> int:
    """Bytes that a relay of so many workers needs."""
    return TURNS * world * world * _piece(world)


def _piece(world: int) -> int:
    return min(PIECE, ROW // world) // ALIGN * ALIGN


class Relay:
    """Of one group. `space` is the same shared memory for everybody."""

    def __init__(self, meeting: Meeting, space: torch.Tensor) -> None:
        self._meeting, self._space = meeting, space
        self._rank, self._world = meeting.rank, meeting.world
        self._peers = [(self._rank + step) % self._world for step in range(1, self._world)]  # each begins with another
        self._slots: dict[torch.dtype, list[list[Row]]] = {}  # by turn, by who brings, by whose it is

    def all_reduce(self, flat: torch.Tensor, reduce: Reduce) -> None:
        """In place, of any size. Every worker, after `meeting.call`; waits for all."""
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
            with torch.inference_mode(False):  # what is made in it could not be written to outside
                slots = self._space.view(dtype).view(TURNS, self._world, self._world, -1)
                self._slots[dtype] = [[row.unbind() for row in turn.unbind()] for turn in slots.unbind()]
        return self._slots[dtype]


def _fit(slot: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    return slot if slot.numel() == piece.numel() else slot[: piece.numel()]
