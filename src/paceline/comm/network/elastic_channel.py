"""Channel of an elastic run on several hosts: each collective counts on all workers that are left, or on none.

A collective has two halves. In the first, data is exchanged; in the second, each worker tells all others that it has
everything. Who has heard that from all goes on. So when a worker is lost, and one of those that are left has finished a
collective, all of them have its data: it counts for all. They tell each other the last collective that they have
finished, and take the highest number (`Members.settle`): up to there collectives return, and the next one raises
`Regrouping` on every worker. It does not matter what the lost worker had sent to whom.

Sums are made by parts: each worker adds one part of all workers' numbers, in the order of ranks, and sends the sum to
all. A worker that has failed answers the next collective of its peers, as in shared memory (memory/shm_rendezvous.py).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.comm.call_site import script_line
from paceline.comm.ending import CalledOff, Regrouping
from paceline.comm.members import Members
from paceline.comm.memory.flats import bytes_of
from paceline.comm.memory.reductions import Shared
from paceline.comm.network.letters import Letter, Letters
from paceline.comm.network.parts import cut
from paceline.errors import PartedError

DATA, SUMS, DONE, TEXTS = range(4)  # phases of a collective
OFF = b"called off"
SMALL = 1 << 14  # bytes: less is added by every worker for itself
First = Callable[[int], torch.Tensor | None]  # what a peer is sent
Rest = Callable[[dict[int, Letter]], None]


class ElasticChannel:
    """A channel between workers on any hosts that can be lost."""

    name = "elastic"
    algorithms: tuple[str, ...] = ()
    algorithm: str | None = None
    answers = True

    def __init__(self, store: Any, rank: int, world: int, *, address: str, members: Members) -> None:
        """`address`: the address at which the other workers reach this host."""
        self.rank, self.world, self._members = rank, world, members
        self._letters = Letters(store, rank, world, address=address, look=members.look)
        self._number = self._passed = 0  # collectives that were begun here, and that have ended
        self._over = False  # a worker is lost, and the collective that counts last has ended
        atexit.register(self._end)

    def agree(self, *, failed: bool) -> None:
        self._make(OFF if failed else b"barrier", lambda peer: None, lambda came: None)

    def begin_again(self) -> None:
        pass

    def all_reduce(self, flat: torch.Tensor, what: str) -> None:
        if flat.numel() * flat.itemsize <= SMALL:
            mine = bytes_of(flat.clone())
            self._make(_call(what, flat), lambda peer: mine, lambda came: self._add(flat, came))
            return
        parts = [flat[start:end] for start, end in cut(flat.numel(), self.world)]
        own = parts[self.rank]

        def share(came: dict[int, Letter]) -> None:
            self._add(own, came)
            for peer in self._letters.peers:
                self._letters.post(peer, self._number, SUMS, b"", bytes_of(own))
            for peer, letter in self._letters.collect(self._number, SUMS).items():
                bytes_of(parts[peer]).copy_(letter.data)

        sent = flat.clone()  # sums arrive in `flat` while parts of it may still be on their way
        given = [sent[start:end] for start, end in cut(flat.numel(), self.world)]
        self._make(_call(what, flat), lambda peer: bytes_of(given[peer]), share)

    def broadcast(self, flat: torch.Tensor, what: str) -> None:
        raw = bytes_of(flat)
        sent = raw.clone() if self.rank == 0 else None

        def take(came: dict[int, Letter]) -> None:
            if self.rank:
                raw.copy_(came[0].data)

        self._make(_call(what, flat), lambda peer: sent, take)

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor], what: str) -> None:
        mine = bytes_of(own).clone()

        def take(came: dict[int, Letter]) -> None:
            bytes_of(into[self.rank]).copy_(mine)
            for peer, letter in came.items():
                bytes_of(into[peer]).copy_(letter.data)

        sizes = ",".join(str(piece.numel()) for piece in into)
        self._make(_call(what, own, sizes), lambda peer: mine, take)

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared | None:
        return None

    def start(
        self, flat: torch.Tensor, shared: Shared | None, what: str, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Any:
        return flat  # summed in `finish`, which all workers call at the same point

    def progress(self) -> None:
        pass

    def finish(self, begun: Any) -> None:
        self.all_reduce(begun, "gradients")

    def _add(self, own: torch.Tensor, came: dict[int, Letter]) -> None:
        """The sum over all workers, in the order of their ranks: the same on every worker that makes it."""
        if not own.numel():
            return
        total: torch.Tensor | None = None
        for rank in range(self.world):
            addend = own.clone() if rank == self.rank else came[rank].data.view(own.dtype)
            total = addend if total is None else total.add_(addend)
        assert total is not None
        own.copy_(total)

    def _make(self, call: bytes, first: First, rest: Rest) -> None:
        """Makes one collective: `first` are the data for each peer, `rest` takes what came from them."""
        if self._over:
            raise Regrouping
        self._number += 1
        number, off = self._number, call == OFF
        try:
            for peer in self._letters.peers:
                self._letters.post(peer, number, DATA, call, first(peer))
            came = self._letters.collect(number, DATA)
            off = off or any(letter.call == OFF for letter in came.values())
            if not off:
                if any(letter.call != call for letter in came.values()):
                    self._part(call)
                rest(came)
            for peer in self._letters.peers:
                self._letters.post(peer, number, DONE, b"")
            # One that has ended, after all had everything, sends nothing again.
            self._letters.collect(number, DONE, or_so=lambda: self._members.have_told(number))
            self._letters.arrived()
            self._passed = number
        except Regrouping:
            counts = self._members.settle(self._passed) >= number
            self._over = True
            self._letters.close()
            atexit.unregister(self._end)
            if not counts:
                raise
        if off and call != OFF:
            raise CalledOff

    def _part(self, call: bytes) -> None:
        """The workers have diverged: each tells the others its call and its line, and raises."""
        own = call + b" at " + script_line().encode()
        for peer in self._letters.peers:
            self._letters.post(peer, self._number, TEXTS, own)
        texts = {peer: letter.call for peer, letter in self._letters.collect(self._number, TEXTS).items()}
        said = {self._members.ranks[rank]: text.decode() for rank, text in (texts | {self.rank: own}).items()}
        raise PartedError(
            "The workers entered different collectives: "
            + "; ".join(f"worker {rank}: {said[rank]}" for rank in sorted(said)),
            advice="Look for a branch of the script that depends on time, on unseeded randomness or on the process: "
            "all workers must make the same collectives in the same order, with the same size and dtype.",
        )

    def _end(self) -> None:
        """The script has ended here. Others may wait to hear how far this worker came."""
        if not self._over:
            self._over = True
            self._members.tell(self._passed)
            self._letters.bid_farewell()


def _call(what: str, flat: torch.Tensor, sizes: str = "") -> bytes:
    size = f"[{sizes}]" if sizes else str(flat.numel())
    return f"{what} of {size} {str(flat.dtype).removeprefix('torch.')}".encode()
