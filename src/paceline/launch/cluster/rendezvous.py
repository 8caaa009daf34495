"""Hosts that come by themselves: the same command on each, with `--rendezvous HOST:PORT`.

`meet` gives the controller's side, `Meeting`, on the host that owns the address, and the side of a member on all other
hosts. A member starts an agent when the controller sends it what an agent reads from its standard input; from then on
the run is as over ssh.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zmq
from zmq.utils import z85

from paceline import threads
from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster.backend import PATIENCE
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.messages import Boot
from paceline.launch.cluster.process import ProcessAgent, agent_command
from paceline.launch.interrupts import exit_code_of
from paceline.settings import take_secret
from paceline.units import count
from paceline.wire.channel import BEAT, LOST, Connection, Keys, Listener, Loop, frames_of, joined

SHORTEST = 16  # characters: nobody guesses more of them
_ADVICE = (
    "Make a secret with `openssl rand -hex 32 > FILE; chmod 600 FILE`, copy it to each host, and type: --secret FILE"
)
_PATIENT = 2.0  # seconds after which a wait is told of
_STRANGE = 5  # failed handshakes

# --- what was typed


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """A rendezvous as typed. `node` is this host's number, if it was given; `workers` the total, if it was given;
    `own` the number of workers of this host, if not. `same` must be the same on all hosts."""

    host: str
    port: int
    nodes: int
    keys: Keys
    node: int | None = None
    workers: int | None = None
    own: int = 1
    same: Mapping[str, str] = field(default_factory=dict)
    wait: float = 600.0
    name: str = field(default_factory=socket.gethostname)

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


def parse_place(typed: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`."""
    host, _, port = typed.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or ":" in host:
        raise UsageError(
            f"--rendezvous {typed} is not a host and a port.",
            advice="Type the name or IPv4 address of one of the hosts, and a free port there: --rendezvous a:29500",
        )
    return host, int(port)


def derive(secret: str) -> Keys:
    """The keys that belong to a secret: the same on every host."""
    # scrypt: whoever has recorded a handshake cannot try many secrets.
    made = hashlib.scrypt(secret.encode(), salt=b"paceline rendezvous 1", n=1 << 14, r=8, p=1, dklen=64)
    private = z85.encode(made[:32])
    return Keys(zmq.curve_public(private).decode(), private.decode(), made[32:].hex())


def read_secret(file: Path | None) -> str:
    """The secret in the file, or else in PACELINE_SECRET, which is removed from the environment. UsageError if there is
    none."""
    given = take_secret()
    if file is None and given is None:
        raise UsageError("--rendezvous needs a secret that all hosts share, and there is none.", advice=_ADVICE)
    what = "PACELINE_SECRET"
    if file is not None:
        what = f"--secret {file}"
        try:
            mode, given = file.stat().st_mode, file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{what} cannot be read: {error}.", advice=_ADVICE) from None
        if mode & 0o077:
            raise UsageError(f"{what} can be read by other accounts.", advice=f"Type: chmod 600 {file}")
    secret = (given or "").strip()
    if len(secret) < SHORTEST:
        raise UsageError(f"{what} has {len(secret)} characters, and needs at least {SHORTEST}.", advice=_ADVICE)
    return secret


# --- member → controller


class Join(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Sent until the controller answers."""

    host: str
    node: int | None  # --node-rank
    workers: int  # if -n is not given
    same: dict[str, str]  # what must be the same on all hosts


class Here(msgspec.Struct, tag=True, frozen=True):
    """A heartbeat."""


class Left(msgspec.Struct, tag=True, frozen=True):
    """The agent of this member has ended."""

    why: str


class FromMember(msgspec.Struct, frozen=True):
    """Around every message from a member. `me` stays the same when a connection is made anew."""

    me: str
    message: Join | Here | Left


# --- controller → member


class Waiting(msgspec.Struct, tag=True, frozen=True):
    """A heartbeat: the member has joined."""


class Refused(msgspec.Struct, tag=True, frozen=True):
    message: str
    advice: str


class Start(msgspec.Struct, tag=True, frozen=True):
    """Start an agent with these variables, and `boot` on its standard input."""

    variables: dict[str, str]
    boot: bytes


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the agent."""

    patience: float


class Over(msgspec.Struct, tag=True, frozen=True):
    """The run has ended with this exit code. `message` says why, if it has failed."""

    code: int
    message: str


ToMember = Waiting | Refused | Start | Stop | Over


# --- the controller's side


def meet(request: JoinRequest, tell: Callable[[str], None]) -> Meeting | Member:
    """The controller's side if this host owns the address, and no other process listens there; else a member's."""
    if request.node not in (None, 0):
        return Member(request, tell)
    address = "0.0.0.0" if request.node == 0 else _resolved(request)
    try:
        listener = Listener(request.keys, address, request.port, expected=request.nodes)
    except OSError as error:
        if request.node is None and error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return Member(request, tell)
        raise UsageError(
            f"--rendezvous {request.place}: this host cannot listen there: {error.strerror}.",
            advice="Type another port.",
        ) from None
    return Meeting(request, listener, tell)


def _resolved(request: JoinRequest) -> str:
    by = time.monotonic() + request.wait
    while True:
        try:
            return socket.getaddrinfo(request.host, request.port, socket.AF_INET)[0][4][0]  # type: ignore[return-value]
        except socket.gaierror as error:
            if time.monotonic() > by:
                raise UsageError(
                    f"--rendezvous {request.place}: this host does not know {request.host}: {error.strerror}.",
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
    """The controller's side: a ClusterBackend. A thread answers, and sends heartbeats."""

    patience = PATIENCE

    def __init__(self, request: JoinRequest, listener: Listener, tell: Callable[[str], None]) -> None:
        self._request, self._listener, self._tell = request, listener, tell
        self._guests: dict[str, _Guest] = {}  # by the member's own name for itself
        self._order: list[str] | None = None  # of hosts 1, …, when all have come
        self._refused: list[str] = []
        self._changed, self._over = threading.Condition(), False
        self._decoder = msgspec.msgpack.Decoder(FromMember)
        self._loop = Loop[tuple[bytes, ToMember]](
            "rendezvous",
            lambda: (self._listener.socket,),
            turn=self._receive,
            beat=self._beat,
            send=lambda posted: self._say(*posted),
            end=lambda: self._listener.close(linger=2000),
        )
        self._loop.start()

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
                if waited > self._request.wait:
                    raise LaunchError(
                        f"{there} of {count(self._request.nodes, 'host')} came to {self._request.place} within "
                        f"{self._request.wait:.0f} s: {', '.join([self._request.name, *self._names()])}.",
                        advice="Type the same command on the other hosts, or another --nodes.",
                    )
                if waited > _PATIENT and not told:
                    told = True
                    self._tell(f"{there} of {self._request.nodes} hosts are here; waiting at {self._request.place}")
                self._changed.wait(0.2)
            return self._shared_out([self._guests[me] for me in self._order])

    def words(self) -> list[str]:
        return []  # the same command must be typed on every host

    def start_agent(
        self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes
    ) -> ProcessAgent | MemberAgent:
        number = [each.name for each in self.hosts()].index(host.name)
        if number == 0:
            return ProcessAgent(agent_command(variables), secret_on_stdin)
        assert self._order is not None
        guest = self._guests[self._order[number - 1]]
        self.send(guest.peer, Start(dict(variables), secret_on_stdin))
        return MemberAgent(self, guest)

    def send(self, peer: bytes, message: ToMember) -> None:
        self._loop.post((peer, message))

    def until_gone(self, guest: _Guest, seconds: float) -> None:
        """Waits for the end of a member's agent."""
        with self._changed:
            self._changed.wait_for(lambda: guest.why is not None, seconds)

    def finish(self, code: int, message: str = "") -> None:
        """Sends all members home with the exit code of the run."""
        with self._changed:
            for guest in self._guests.values():
                self.send(guest.peer, Over(code, message))
        self._over = True
        self._loop.close()

    def _shared_out(self, guests: list[_Guest]) -> list[HostSpec]:
        names = [self._request.name, *(guest.name for guest in guests)]
        each, more = divmod(self._request.workers or 0, len(names))
        shares = [each + (number < more) for number in range(len(names))]
        if self._request.workers is None:
            shares = [self._request.own, *(guest.workers for guest in guests)]
        return [
            HostSpec(name if names.count(name) == 1 else f"{name}#{number}", share)
            for number, (name, share) in enumerate(zip(names, shares, strict=True))
        ]

    def _names(self) -> list[str]:
        return [guest.name for guest in self._guests.values()]

    def _receive(self) -> None:
        for peer, frames in self._listener.receive():
            with contextlib.suppress(msgspec.DecodeError):
                self._take(peer, self._decoder.decode(joined(frames)))

    def _say(self, peer: bytes, message: ToMember) -> None:
        self._listener.send(peer, frames_of(msgspec.msgpack.encode(message)))

    def _take(self, peer: bytes, told: FromMember) -> None:
        with self._changed:
            guest = self._guests.get(told.me)
            if guest is not None:
                guest.peer, guest.heard = peer, time.monotonic()
                if isinstance(told.message, Left):
                    guest.why = told.message.why
            elif isinstance(told.message, Join):
                self._welcome(peer, told.me, told.message)
            self._changed.notify_all()

    def _welcome(self, peer: bytes, me: str, join: Join) -> None:
        problem = self._problem(join)
        if problem:
            self._say(peer, Refused(problem, "Type the same command on every host."))
            if self._order is None:
                self._refused.append(problem)
            return
        self._guests[me] = _Guest(join.host, join.node, join.workers, peer, time.monotonic())
        self._say(peer, Waiting())
        if len(self._guests) == self._request.nodes - 1:
            free = (number for number in range(1, self._request.nodes) if number not in self._taken())
            places = {me: guest.node if guest.node is not None else next(free) for me, guest in self._guests.items()}
            self._order = sorted(places, key=places.__getitem__)

    def _taken(self) -> set[int]:
        return {guest.node for guest in self._guests.values() if guest.node is not None}

    def _problem(self, join: Join) -> str:
        if self._order is not None or len(self._guests) >= self._request.nodes - 1:
            return f"{join.host} came too late: the run has its {count(self._request.nodes, 'host')}."
        if join.node is not None and (join.node >= self._request.nodes or join.node in self._taken()):
            taken = "another host has it" if join.node in self._taken() else f"there are {self._request.nodes} hosts"
            return f"{join.host} has --node-rank {join.node}, but {taken}."
        for name, here in self._request.same.items():
            if (there := join.same.get(name, "")) != here:
                return f"{join.host} has {name} {there}, and {self._request.name} has {here}."
        return ""

    def _beat(self) -> None:
        now = time.monotonic()
        with self._changed:
            for me, guest in list(self._guests.items()):
                if now - guest.heard <= LOST:
                    self._say(guest.peer, Waiting())
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
        self._meeting.send(self._guest.peer, Stop(patience))
        if patience:
            self._meeting.until_gone(self._guest, patience + 1.0)


# --- the member's side


class Member:
    """One host that joins. Only the main thread uses it."""

    def __init__(self, request: JoinRequest, tell: Callable[[str], None]) -> None:
        self._request, self._tell, self._me = request, tell, secrets.token_hex(8)
        self._agent: ProcessAgent | None = None
        self._connection = Connection(
            f"tcp://{request.host}:{request.port}",
            *request.keys.access,
            events=zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_CONNECTED,
            # Nothing is kept for a controller that is not there yet.
            options={zmq.IMMEDIATE: 1, zmq.HEARTBEAT_IVL: 1000, zmq.HEARTBEAT_TIMEOUT: 5000},
        )
        self._failed, self._connected = 0, False

    def serve(self) -> int:
        """Until the run is over; returns its exit code. LaunchError if there is no controller, or no longer."""
        try:
            return self._served()
        except KeyboardInterrupt as error:
            self._send(Left(f"it was interrupted (exit code {exit_code_of(error)})"))
            raise
        finally:
            if self._agent is not None:
                self._agent.kill(5.0)
            self._connection.close(linger=1000)

    def _served(self) -> int:
        decoder: msgspec.msgpack.Decoder[ToMember] = msgspec.msgpack.Decoder(ToMember)
        begun = time.monotonic()
        heard, beat_at, told, left = 0.0, 0.0, False, False
        while True:
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + BEAT
                self._send(Here() if heard else self._join())
            self._connection.socket.poll(100)
            for frames in self._connection.receive():
                heard = time.monotonic()
                message = decoder.decode(joined(frames))
                if isinstance(message, Over):
                    how = f": {message.message}" if message.message else f", with exit code {message.code}"
                    self._tell(f"the run has ended{how if message.message or message.code else ''}")
                    return message.code
                self._do(message)
            if self._agent is not None and not left and (why := self._agent.ended()) is not None:
                left = True
                self._send(Left(why))
            if heard and time.monotonic() - heard > LOST:
                raise LaunchError(
                    f"The controller of the run, at {self._request.place}, has not answered for {LOST:.0f} s.",
                    advice="Look at the output of the command there.",
                )
            if not heard:
                self._look(now - begun)
                if now - begun > _PATIENT and not told:
                    told = True
                    self._tell(f"waiting for the controller at {self._request.place}")

    def _do(self, message: ToMember) -> None:
        if isinstance(message, Refused):
            raise LaunchError(message.message, advice=message.advice)
        if isinstance(message, Start):
            # Each host runs the script in the folder where its own command was typed.
            boot = msgspec.structs.replace(msgspec.json.decode(message.boot, type=Boot), folder=os.getcwd())
            self._agent = ProcessAgent(agent_command(message.variables), msgspec.json.encode(boot))
            self._tell(f"this host has joined the run at {self._request.place}")
        elif isinstance(message, Stop) and self._agent is not None:
            self._agent.kill(message.patience)
            self._agent = None
            self._send(Left("it was stopped"))

    def _join(self) -> Join:
        request = self._request
        return Join(host=request.name, node=request.node, workers=request.own, same=dict(request.same))

    def _send(self, message: Join | Here | Left) -> None:
        self._connection.send(frames_of(msgspec.msgpack.encode(FromMember(self._me, message))))

    def _look(self, waited: float) -> None:
        """Why there is no answer. Raises LaunchError when it is clear that there will be none."""
        for event in self._connection.events():
            self._connected = self._connected or event == zmq.EVENT_CONNECTED
            self._failed += event != zmq.EVENT_CONNECTED
        place = self._request.place
        if self._failed >= _STRANGE:
            raise LaunchError(
                f"A process listens at {place}, but not with the secret of this host.",
                advice="Copy the same secret to every host, or type another port.",
            )
        if waited > self._request.wait:
            found = "nothing answers there" if not self._connected else "it accepts connections and does not answer"
            raise LaunchError(
                f"No controller at {place} within {self._request.wait:.0f} s: {found}.",
                advice=f"Type the same command on {self._request.host}, and look whether this host can connect to it.",
            )
