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
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import zmq

from paceline.comm.call_site import script_line
from paceline.comm.channels import Channel
from paceline.comm.ending import CalledOff, Regrouping
from paceline.comm.members import Members
from paceline.comm.memory.flats import bytes_of
from paceline.comm.network.parts import cut
from paceline.errors import PartedError
from paceline.wire.channel import Connection, Keys, Listener, frames_of

# -- letters ----------------------------------------------------------------------------------------------------------
# Nothing here waits in native code for a peer: a worker that waits looks up again and again whether a peer is lost.
# Each worker makes a key and a token for itself, and tells them to the others through the store of the run: a process
# that cannot read that store can neither listen nor send.
#
# A connection that breaks (a reset, a firewall that forgets it) is made again by ZeroMQ, which does not send again what
# was on its way. So letters are kept until it is certain that they have arrived, and are sent again over each new
# connection; who has them already drops them.


_HEAD = struct.Struct("!QBI")  # number of the collective, phase, sender
_LOOKS = (0.02, 0.1)  # seconds between two looks for a lost peer: the first, and the longest
_FAREWELL = 2000  # milliseconds in which the last messages of a worker that ends must have left it
_UNACKNOWLEDGED = 15_000  # milliseconds after which the kernel gives a connection up that does not take what is sent
_LONG = 1.0  # seconds of waiting after which a letter may have been lost with its sender's end


class Letter(NamedTuple):
    """What a peer has sent: a description of its call, and data."""

    call: bytes
    data: torch.Tensor


class Letters:
    """Used by one thread."""

    def __init__(self, store: Any, rank: int, world: int, *, address: str, look: Callable[[], None]) -> None:
        """Every worker of the group calls it; waits until all have an address. `look` raises if a peer is lost."""
        self.rank, self.world, self._look = rank, world, look
        self.peers = [peer for peer in range(world) if peer != rank]
        self._listener = Listener(Keys.make(), address, expected=world)
        self._context = zmq.Context()  # of the connections
        self._came: dict[tuple[int, int], dict[int, Letter]] = {}
        self._over: tuple[int, int] = (0, -1)  # the latest collective and phase whose letters were all collected
        self._to: dict[int, Connection] = {}
        self._sent: dict[int, list[list[Any]]] = {peer: [] for peer in self.peers}  # what may have to be sent again
        try:
            store.set(f"letters{rank}", " ".join((self._listener.place, *self._listener.access)))
            for peer in self.peers:
                self._to[peer] = Connection(
                    *store.get(f"letters{peer}").decode().split(),
                    context=self._context,
                    events=zmq.EVENT_HANDSHAKE_SUCCEEDED,
                    options={zmq.TCP_MAXRT: _UNACKNOWLEDGED},
                )
        except BaseException:
            self.close()
            raise

    def post(self, peer: int, number: int, phase: int, call: bytes, data: torch.Tensor | None = None) -> None:
        """Sends bytes. They must not change until all peers have said that they have them (`arrived`)."""
        frames = [_HEAD.pack(number, phase, self.rank), call]
        self._sent[peer].append(frames if data is None else [*frames, *frames_of(data.numpy())])
        self._to[peer].send(self._sent[peer][-1], copy=False)

    def collect(self, number: int, phase: int, *, or_so: Callable[[], bool] = lambda: False) -> dict[int, Letter]:
        """Waits for the letters of all peers in this phase of a collective, or until it has become so that they are
        not needed, which is asked now and then after a long wait."""
        nap, began = _LOOKS[0], time.monotonic()
        looked = asked = began
        while len(came := self._came.setdefault((number, phase), {})) < len(self.peers):
            if self._listener.socket.poll(int(1000 * nap)):
                self._take()
            if (now := time.monotonic()) - looked >= nap:
                self._look()
                self._send_again()
                if now - asked >= _LONG:
                    asked = now
                    if or_so():
                        break
                nap, looked = min(2 * nap, _LOOKS[1]), time.monotonic()
        del self._came[number, phase]
        self._over = number, phase
        return came

    def arrived(self) -> None:
        """All peers have said that they have everything of this collective. They may not have heard that from here."""
        for letters in self._sent.values():
            del letters[:-1]

    def close(self, *, linger: int = 0) -> None:
        """With `linger`, waits so many milliseconds for what was sent last."""
        for connection in self._to.values():
            connection.close(linger=linger)
        self._listener.close()
        self._sent.clear()
        self._context.term()

    def bid_farewell(self) -> None:
        """Before the process ends."""
        self.close(linger=_FAREWELL)

    def _send_again(self) -> None:
        """Letters to peers to which there is a new connection: those on their way may be lost with the old one."""
        for peer, connection in self._to.items():
            for letter in self._sent[peer] if connection.was_renewed() else ():
                connection.send(letter, copy=False)

    def _take(self) -> None:
        for _, (head, call, *data) in self._listener.receive(copy=False):
            number, phase, sender = _HEAD.unpack(head)
            if (number, phase) <= self._over:
                continue  # it has come before
            # A copy: what came is read-only, and lies at any address.
            raw = bytearray().join(data)
            held = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8, device="cpu")
            self._came.setdefault((number, phase), {})[sender] = Letter(bytes(call), held)


# -- the channel ------------------------------------------------------------------------------------------------------


DATA, SUMS, DONE, TEXTS = range(4)  # phases of a collective
OFF = b"called off"
SMALL = 1 << 14  # bytes: less is added by every worker for itself
First = Callable[[int], torch.Tensor | None]  # what a peer is sent
Rest = Callable[[dict[int, Letter]], None]


class ElasticChannel(Channel):
    """A channel between workers on any hosts that can be lost."""

    name = "elastic"
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
