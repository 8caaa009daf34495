"""Hosts that come by themselves: the same command on each, with `--rendezvous HOST:PORT`.

`meet` gives the controller's side, `Meeting`, on the host that owns the address, and the side of a member on all other
hosts. A member starts an agent when the controller sends it what an agent reads from its standard input; from then on
the run is as over ssh.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from paceline import threads
from paceline.comm.pulse import BEAT, LOST
from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster.backend import PATIENCE
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.process import ProcessAgent, agent_command
from paceline.launch.cluster.rendezvous import wire
from paceline.launch.cluster.rendezvous.asked import Asked
from paceline.launch.cluster.rendezvous.member import Member
from paceline.units import count
from paceline.wire.channel import Door, frames_of, is_token, joined

_PATIENT = 2.0  # seconds after which the wait for other hosts is told of


def meet(asked: Asked, tell: Callable[[str], None]) -> Meeting | Member:
    """The controller's side if this host owns the address, and no other process listens there; else a member's."""
    if asked.node not in (None, 0):
        return Member(asked, tell)
    context = zmq.Context()
    listener = context.socket(zmq.ROUTER)
    listener.setsockopt(zmq.LINGER, 0)
    address = "0.0.0.0" if asked.node == 0 else _resolved(asked)
    try:
        door = Door(listener, asked.keys.private, address, asked.port, expected=asked.nodes)
    except OSError as error:
        listener.close()
        context.term()
        if asked.node is None and error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return Member(asked, tell)
        raise UsageError(
            f"--rendezvous {asked.place}: this host cannot listen there: {error.strerror}.", advice="Type another port."
        ) from None
    return Meeting(asked, context, listener, door, tell)


def _resolved(asked: Asked) -> str:
    by = time.monotonic() + asked.wait
    while True:
        try:
            return socket.getaddrinfo(asked.host, asked.port, socket.AF_INET)[0][4][0]  # type: ignore[return-value]
        except socket.gaierror as error:
            if time.monotonic() > by:
                raise UsageError(
                    f"--rendezvous {asked.place}: this host does not know {asked.host}: {error.strerror}.",
                    advice="Type a name or an address that every host knows.",
                ) from None
            time.sleep(0.5)  # the name of a host that is being started may come later


@dataclass
class _Guest:
    """A host that has joined, as the meeting's thread sees it."""

    name: str
    node: int | None
    workers: int
    peer: bytes
    heard: float
    why: str | None = None


class Meeting:
    """The controller's side: a ClusterBackend. A thread owns the socket; it answers, and sends heartbeats."""

    patience = PATIENCE

    def __init__(self, asked: Asked, context: Any, listener: Any, door: Door, tell: Callable[[str], None]) -> None:
        self._asked, self._context, self._listener, self._tell = asked, context, listener, tell
        self._door = door
        self._guests: dict[str, _Guest] = {}  # by the member's own name for itself
        self._order: list[str] | None = None  # of hosts 1, …, when all have come
        self._refused: list[str] = []
        self._orders: deque[tuple[bytes, wire.ToMember]] = deque()
        self._changed = threading.Condition()
        self._over = False
        self._thread = threads.start("rendezvous", self._serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over:
            self.finish(1, str(error) if error is not None else "")

    def hosts(self) -> list[HostSpec]:
        """Waits until all hosts have come. LaunchError if some do not come in time, or were started otherwise."""
        begun, told = time.monotonic(), False
        with self._changed:
            while self._order is None:
                threads.check()
                waited = time.monotonic() - begun
                if self._refused:
                    raise LaunchError("\n".join(self._refused), advice="Type the same command on every host.")
                there = 1 + len(self._guests)
                if waited > self._asked.wait:
                    raise LaunchError(
                        f"{there} of {count(self._asked.nodes, 'host')} came to {self._asked.place} within "
                        f"{self._asked.wait:.0f} s: {', '.join([self._asked.name, *self._names()])}.",
                        advice="Type the same command on the other hosts, or another --nodes.",
                    )
                if waited > _PATIENT and not told:
                    told = True
                    self._tell(f"{there} of {self._asked.nodes} hosts are here; waiting at {self._asked.place}")
                self._changed.wait(0.2)
            return self._shared_out([self._guests[me] for me in self._order])

    def start_agent(
        self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes
    ) -> ProcessAgent | MemberAgent:
        number = [each.name for each in self.hosts()].index(host.name)
        if number == 0:
            return ProcessAgent(agent_command(variables), secret_on_stdin)
        assert self._order is not None
        guest = self._guests[self._order[number - 1]]
        self.send(guest.peer, wire.Start(dict(variables), secret_on_stdin))
        return MemberAgent(self, guest)

    def send(self, peer: bytes, message: wire.ToMember) -> None:
        self._orders.append((peer, message))

    def until_gone(self, guest: _Guest, seconds: float) -> None:
        """Waits for the end of a member's agent."""
        with self._changed:
            self._changed.wait_for(lambda: guest.why is not None, seconds)

    def finish(self, code: int, message: str = "") -> None:
        """Sends all members home with the exit code of the run."""
        with self._changed:
            for guest in self._guests.values():
                self.send(guest.peer, wire.Over(code, message))
        self._over = True
        self._thread.join()
        self._door.close()
        self._listener.close(linger=2000)
        self._context.term()

    def _shared_out(self, guests: list[_Guest]) -> list[HostSpec]:
        names = [self._asked.name, *(guest.name for guest in guests)]
        each, more = divmod(self._asked.workers or 0, len(names))
        shares = [each + (number < more) for number in range(len(names))]
        if self._asked.workers is None:
            shares = [self._asked.own, *(guest.workers for guest in guests)]
        return [
            HostSpec(name if names.count(name) == 1 else f"{name}#{number}", share)
            for number, (name, share) in enumerate(zip(names, shares, strict=True))
        ]

    def _names(self) -> list[str]:
        return [guest.name for guest in self._guests.values()]

    def _serve(self) -> None:
        decoder, beat_at = msgspec.msgpack.Decoder(wire.FromMember), 0.0
        while not self._over or self._orders:
            while self._orders:
                self._say(*self._orders.popleft())
            if self._listener.poll(50):
                try:
                    peer, *frames = self._listener.recv_multipart()
                    self._take(peer, decoder.decode(joined(frames)))
                except (ValueError, msgspec.DecodeError):
                    continue
            if (now := time.monotonic()) >= beat_at:
                beat_at = now + BEAT
                self._beat(now)

    def _say(self, peer: bytes, message: wire.ToMember) -> None:
        self._listener.send_multipart([peer, *frames_of(msgspec.msgpack.encode(message))])

    def _take(self, peer: bytes, told: wire.FromMember) -> None:
        if not is_token(told.token, self._asked.keys.token):
            return
        with self._changed:
            guest = self._guests.get(told.me)
            if guest is not None:
                guest.peer, guest.heard = peer, time.monotonic()
                if isinstance(told.message, wire.Left):
                    guest.why = told.message.why
            elif isinstance(told.message, wire.Join):
                self._welcome(peer, told.me, told.message)
            self._changed.notify_all()

    def _welcome(self, peer: bytes, me: str, join: wire.Join) -> None:
        problem = self._problem(join)
        if problem:
            self._say(peer, wire.Refused(problem, "Type the same command on every host."))
            if self._order is None:
                self._refused.append(problem)
            return
        self._guests[me] = _Guest(join.host, join.node, join.workers, peer, time.monotonic())
        self._say(peer, wire.Waiting())
        if len(self._guests) == self._asked.nodes - 1:
            free = (number for number in range(1, self._asked.nodes) if number not in self._taken())
            places = {me: guest.node if guest.node is not None else next(free) for me, guest in self._guests.items()}
            self._order = sorted(places, key=places.__getitem__)

    def _taken(self) -> set[int]:
        return {guest.node for guest in self._guests.values() if guest.node is not None}

    def _problem(self, join: wire.Join) -> str:
        if self._order is not None or len(self._guests) >= self._asked.nodes - 1:
            return f"{join.host} came too late: the run has its {count(self._asked.nodes, 'host')}."
        if join.node is not None and (join.node >= self._asked.nodes or join.node in self._taken()):
            taken = "another host has it" if join.node in self._taken() else f"there are {self._asked.nodes} hosts"
            return f"{join.host} has --node-rank {join.node}, but {taken}."
        for name, here in self._asked.same.items():
            if (there := join.asked.get(name, "")) != here:
                return f"{join.host} has {name} {there}, and {self._asked.name} has {here}."
        return ""

    def _beat(self, now: float) -> None:
        with self._changed:
            for me, guest in list(self._guests.items()):
                if now - guest.heard <= LOST:
                    self._say(guest.peer, wire.Waiting())
                elif self._order is None:
                    del self._guests[me]  # gone before all had come: its place is free
                elif guest.why is None:
                    guest.why = f"it has not answered for {LOST:.0f} s"
                    self._changed.notify_all()


class MemberAgent:
    """The agent of a host that has joined."""

    def __init__(self, meeting: Meeting, guest: _Guest) -> None:
        self._meeting, self._guest = meeting, guest

    def ended(self) -> str | None:
        return self._guest.why

    def kill(self, patience: float = 5.0) -> None:
        self._meeting.send(self._guest.peer, wire.Stop(patience))
        if patience:
            self._meeting.until_gone(self._guest, patience + 1.0)
