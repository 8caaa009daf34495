"""Collectives through shared memory, between the workers of one host.

Each worker has a slot that all workers can read. A worker writes its data to its slot and signals the peers, which then
read the slot. Rounds alternate between the two halves of the slots: a worker that has reached a round has finished the
round before the previous one, so no worker waits until all have read. Sums of more than 32 KiB (`SMALL`) use separate
memory (pipelined_allreduce.py).

Every worker calls the same methods in the same order, and each method waits for all workers. A mismatch of method, size
or dtype raises `PartedError` on all workers; a peer that is gone raises `PeerLostError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.comm.memory.pipelined_allreduce import ALIGN, Reduce, Relay, add, space_for
from paceline.comm.memory.shm_rendezvous import Meeting

HALF = 1 << 20  # bytes of a slot's half: small enough to be in the cache when a peer reads it
SMALL = 32 << 10  # bytes: up to this size every worker sums the full tensor, which needs one signal less


class MemoryEngine:
    """The collectives of one group. Tensors are CPU tensors, flat and contiguous."""

    def __init__(self, store: Any, rank: int, world: int, **options: Any) -> None:
        """Every worker of the group calls it, with a store prefix for the exclusive use of this group; waits for
        all."""
        self.rank, self.world = rank, world
        slots = world * 2 * HALF
        self._meeting = Meeting(store, rank, world, slots + space_for(world), **options)
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            self._space, rest = self._meeting.space.split((slots, space_for(world)))
        self._relay = Relay(self._meeting, rest)
        self._peers = [(rank + step) % world for step in range(1, world)]  # rotated to spread the load
        self._slots: dict[torch.dtype, list[list[torch.Tensor]]] = {}  # by half, by rank
        self._round = 0

    def at(self, site: Callable[[], str]) -> None:
        """Sets the script line of the next call, for error messages."""
        self._meeting.site = site

    # -- sums ------------------------------------------------------------------------------------------------------

    def all_reduce(self, flat: torch.Tensor, reduce: Reduce = add, *, name: str = "all_reduce") -> None:
        """Reduces `flat` in place. The result has the same bits on every worker."""
        self._meeting.call(name, flat.dtype, flat.numel())
        if flat.numel() * flat.element_size() <= SMALL:
            self._reduce_small(flat, reduce)
            return
        self._relay.all_reduce(flat, reduce)

    def reduce_scatter(
        self,
        flat: torch.Tensor,
        own: torch.Tensor,
        counts: Sequence[int],
        reduce: Reduce = add,
        *,
        name: str = "reduce_scatter",
    ) -> None:
        """Writes this worker's part of the sum to `own`; `counts[r]` is the length of worker r's part."""
        self._meeting.call(name, flat.dtype, flat.numel(), parts=counts)
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + count)
        own.copy_(flat[ends[self.rank] : ends[self.rank + 1]])
        part = self._part(flat.dtype)
        for at in range(0, max(max(counts), 1), part):
            half = self._half(flat.dtype)
            for peer in self._peers:
                piece = flat[ends[peer] + at : min(ends[peer] + at + part, ends[peer + 1])]
                half[self.rank][peer * part :][: piece.numel()].copy_(piece)
            self._meeting.signal()
            mine = own[at : at + part]
            for peer in self._peers:
                self._meeting.wait(peer)
                reduce(mine, half[peer][self.rank * part :][: mine.numel()])

    def _reduce_small(self, flat: torch.Tensor, reduce: Reduce) -> None:
        half, size = self._half(flat.dtype), flat.numel()
        half[self.rank][:size].copy_(flat)
        self._exchange()
        if self.rank:
            flat.copy_(half[0][:size])  # all workers add in rank order, so that all get the same bits
        for peer in range(1, self.world):
            reduce(flat, half[peer][:size])

    # -- copies ----------------------------------------------------------------------------------------------------

    def broadcast(self, flat: torch.Tensor, root: int, *, name: str = "broadcast") -> None:
        """Copies the root's `flat` to every worker, in place."""
        self._meeting.call(name, flat.dtype, flat.numel(), root)
        self._copy_between(
            flat if self.rank == root else None, lambda peer: flat if peer == root else None, [flat.numel()]
        )

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor], *, name: str = "all_gather") -> None:
        """Copies `own` of worker r into `into[r]`. Sizes may differ; every worker knows all sizes."""
        sizes = [piece.numel() for piece in into]
        self._meeting.call(name, own.dtype, sum(sizes), parts=sizes)
        into[self.rank].copy_(own)
        self._copy_between(own, lambda peer: into[peer], sizes)

    def gather(self, own: torch.Tensor, into: Sequence[torch.Tensor] | None, root: int) -> None:
        """Copies `own` of worker r into `into[r]` of the root; all sizes are equal."""
        self._meeting.call("gather", own.dtype, own.numel(), root)
        if into is not None:
            into[self.rank].copy_(own)
        brings = own if self.rank != root else None
        self._copy_between(brings, lambda peer: into[peer] if into is not None else None, [own.numel()])

    def all_to_all(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
        """Copies `pieces[own rank]` of worker r into `into[r]`. Sizes may differ between pairs of workers."""
        self._meeting.call("all_to_all", pieces[0].dtype, 0)
        part = self._part(pieces[0].dtype)
        rounds = -(-self._longest_piece(pieces, into) // part)
        into[self.rank].copy_(pieces[self.rank])
        for turn in range(rounds):
            half, at = self._half(pieces[0].dtype), turn * part
            for peer in self._peers:
                piece = pieces[peer][at : at + part]
                half[self.rank][peer * part :][: piece.numel()].copy_(piece)
            self._meeting.signal()
            for peer in self._peers:
                self._meeting.wait(peer)
                piece = into[peer][at : at + part]
                piece.copy_(half[peer][self.rank * part :][: piece.numel()])

    def _longest_piece(self, pieces: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> int:
        """The length of the longest piece. Every worker gathers all sizes, so that all raise if a pair disagrees."""
        own = torch.tensor([[piece.numel() for piece in pieces], [piece.numel() for piece in into]], device="cpu")
        every = [torch.empty(2 * self.world, dtype=torch.int64, device="cpu") for _ in range(self.world)]
        every[self.rank].copy_(own.flatten())
        self._copy_between(own.flatten(), lambda peer: every[peer], [own.numel()])
        sent, wanted = torch.stack(every).view(self.world, 2, self.world).unbind(1)
        if not torch.equal(sent, wanted.T):
            self._meeting.part(f"all_to_all of {own[0].tolist()} for {own[1].tolist()} at {self._meeting.site()}")
        return int(sent.max())

    def scatter(self, own: torch.Tensor, pieces: Sequence[torch.Tensor] | None, root: int) -> None:
        """Copies the root's `pieces[r]` into `own` of worker r."""
        self._meeting.call("scatter", own.dtype, own.numel(), root)
        part = self._part(own.dtype)
        if pieces is not None:
            own.copy_(pieces[root])
        for at in range(0, max(own.numel(), 1), part):
            half = self._half(own.dtype)
            for peer in self._peers if pieces is not None else ():
                piece = pieces[peer][at : at + part]  # type: ignore[index]
                half[self.rank][peer * part :][: piece.numel()].copy_(piece)
            self._exchange()
            if pieces is None:
                piece = own[at : at + part]
                piece.copy_(half[root][self.rank * part :][: piece.numel()])

    def barrier(self) -> None:
        """Waits until every worker has called it."""
        self._meeting.call("barrier", torch.uint8, 0)
        self._exchange()

    def call_off(self) -> None:
        """Answers the next collective of the peers, whichever it is: they raise `CalledOff`."""
        self._meeting.call_off()

    def begin_again(self) -> None:
        """Resets the round counter. Every worker calls it after a collective was called off, because only some workers
        had begun a round of that collective."""
        self._round = 0

    def gather_bytes(self, raw: bytes) -> list[bytes]:
        """The bytes of every worker, in rank order; lengths may differ."""
        own = (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            if raw
            else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
        into = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in self.gather_sizes(len(raw))]
        self.all_gather(own, into)
        return [piece.numpy().tobytes() for piece in into]

    def gather_sizes(self, size: int) -> list[int]:
        """The `size` of every worker, in rank order."""
        sizes = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(self.world)]
        self.all_gather(torch.tensor([size], device="cpu"), sizes)
        return [int(each) for each in sizes]

    def _copy_between(
        self,
        brings: torch.Tensor | None,
        into: Callable[[int], torch.Tensor | None],
        sizes: Sequence[int],
    ) -> None:
        """Writes `brings` to this worker's slot and reads `into(peer)` from the slot of each peer, in as many rounds as
        the largest of `sizes` needs."""
        dtype = (
            brings if brings is not None else next(t for r in range(self.world) if (t := into(r)) is not None)
        ).dtype
        room = HALF // dtype.itemsize
        for at in range(0, max(*sizes, 1), room):
            half = self._half(dtype)
            if brings is not None and at < brings.numel():
                piece = brings[at : at + room]
                half[self.rank][: piece.numel()].copy_(piece)
            self._meeting.signal()
            for peer in self._peers:
                self._meeting.wait(peer)
                wanted = into(peer)
                if wanted is not None and at < wanted.numel():
                    piece = wanted[at : at + room]
                    piece.copy_(half[peer][: piece.numel()])

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _half(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Begins a round. Returns the slots of the round, viewed as this dtype, by rank."""
        self._round += 1
        slots = self._slots.get(dtype)
        if slots is None:
            with torch.inference_mode(False):
                space = self._space.view(2, self.world, HALF)
                slots = self._slots[dtype] = [[space[h, r].view(dtype) for r in range(self.world)] for h in (0, 1)]
        return slots[self._round & 1]

    def _part(self, dtype: torch.dtype) -> int:
        """The number of elements in one worker's part of a slot."""
        return HALF // self.world // ALIGN * ALIGN // dtype.itemsize

    def _exchange(self) -> None:
        self._meeting.signal()
        for peer in self._peers:
            self._meeting.wait(peer)
