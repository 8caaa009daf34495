"""The controller's side of the agents: their sockets, and each host as the watch of a run sees it."""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import zmq

from paceline import threads
from paceline.comm.link import messages as say
from paceline.errors import LaunchError
from paceline.launch import messages
from paceline.launch.cluster import wire
from paceline.launch.cluster.backend import Handle
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.sequence import Sequence as Talk
from paceline.launch.events import Output
from paceline.launch.host import Happened, HostLostError
from paceline.launch.store import Values, refusal
from paceline.record.private import make_folder, opened
from paceline.record.stopping import is_stopped, stop

LOST = 10.0  # seconds without a heartbeat of an agent


class Agents:
    """The sockets of a run's agents: one for what happens, and one, served by a thread, for the store."""

    def __init__(self, count: int) -> None:
        public, secret = zmq.curve_keypair()
        self.key, self.token = public.decode(), secrets.token_urlsafe(24)
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self.socket, self.port = self._listen(secret)
        self.inboxes: list[deque[wire.FromAgent]] = [deque() for _ in range(count)]
        self._peers: dict[int, bytes] = {}
        self._sequences = [Talk[wire.ToAgent]() for _ in range(count)]
        self._decoder = msgspec.msgpack.Decoder(wire.Envelope)
        self._values, self._lock = Values(), threading.Lock()
        store, self.store_port = self._listen(secret)
        self._over, self._end = os.pipe2(os.O_CLOEXEC)
        self._thread = threads.start("store of the run", self._serve_store, store)

    def pump(self) -> None:
        """Sorts all messages that have arrived into the hosts' inboxes; never waits."""
        while True:
            try:
                peer, body = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                continue
            try:
                envelope = self._decoder.decode(body)
            except msgspec.DecodeError:
                continue
            if self._is_ours(envelope.token) and 0 <= envelope.number < len(self.inboxes):
                self._take(peer, envelope)

    def send(self, number: int, message: wire.ToAgent) -> None:
        """Sends a message to an agent, if it has said something before."""
        if number in self._peers:
            self._send(number, message, self._sequences[number].add(message))

    def _send(self, number: int, message: wire.ToAgent, place: int) -> None:
        order = wire.Order(message, place, self._sequences[number].heard)
        self.socket.send_multipart([self._peers[number], msgspec.msgpack.encode(order)])

    def _take(self, peer: bytes, envelope: wire.Envelope) -> None:
        number, sequence = envelope.number, self._sequences[envelope.number]
        known = self._peers.get(number, peer)
        self._peers[number] = peer
        if sequence.accepts(envelope.place, envelope.heard):
            self.inboxes[number].append(envelope.message)
        for place, message in sequence.unheard() if known != peer else ():  # over a new connection
            self._send(number, message, place)

    def put(self, key: str, value: bytes) -> None:
        """Sets a key of the workers' store. Any thread may call it."""
        with self._lock:
            self._values.do(say.Set(key, value), [])

    def close(self) -> None:
        os.write(self._end, b"\0")  # a fork of this process may keep its copy open
        self._thread.join()
        os.close(self._end)
        os.close(self._over)
        self.socket.close(linger=1000)
        self._context.term()

    def _listen(self, secret: bytes) -> tuple[Any, int]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.LARGEST)
        socket.setsockopt(zmq.SNDHWM, 0)
        return socket, socket.bind_to_random_port("tcp://0.0.0.0")

    def _is_ours(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _serve_store(self, socket: Any) -> None:
        decoder = msgspec.msgpack.Decoder(wire.StoreAsk)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._over, zmq.POLLIN)
        answered: dict[str, tuple[int, bytes]] = {}  # the last request of each agent, and its answer
        while self._over not in dict(poller.poll()):
            try:
                peer, body = socket.recv_multipart()
                asked = decoder.decode(body)
            except (ValueError, msgspec.DecodeError):
                continue
            if self._is_ours(asked.token):
                if asked.place != answered.get(asked.agent, (0, b""))[0]:
                    answered[asked.agent] = asked.place, self._answer(asked)
                socket.send_multipart([peer, answered[asked.agent][1]])
        socket.close(linger=0)

    def _answer(self, asked: wire.StoreAsk) -> bytes:
        try:
            with self._lock:
                value, _ = self._values.do(asked.ask, [])
            return msgspec.msgpack.encode(wire.StoreTold(asked.place, say.Told(value)))
        except Exception as error:  # of this request
            return msgspec.msgpack.encode(wire.StoreTold(asked.place, refusal(error)))


class RemoteHost:
    """One host of a run, which an agent looks after."""

    def __init__(
        self, spec: HostSpec, number: int, first: int, *, agents: Agents, handle: Handle, record: Path
    ) -> None:
        self.name, self.ranks, self.swept = spec.name, range(first, first + spec.workers), True
        self.number, self._agents, self._handle, self._record = number, agents, handle, record
        self.is_ready = False
        self.workers: Sequence[dict[str, Any]] = ()  # for the record
        self.begin: wire.Begin | None = None
        self._heard = time.monotonic()
        self._beat_at = 0.0
        self._letters, self._warning = "", ""
        self._is_lost = False

    def expect(self) -> Iterator[wire.FromAgent]:
        """What the agent has said before its workers were started; never waits. Raises LaunchError if it is gone."""
        self._agents.pump()
        if (now := time.monotonic()) >= self._beat_at:
            self._beat_at = now + wire.BEAT
            self.say(wire.Alive())
        inbox = self._agents.inboxes[self.number]
        while inbox:
            self._heard = time.monotonic()
            yield inbox.popleft()
        self._check()

    def sources(self) -> Sequence[Any]:
        return (self._agents.socket,)

    def take(self, ready: Mapping[Any, int]) -> Iterator[Happened]:
        for message in self.expect():
            if isinstance(message, wire.Ready):
                self.is_ready = True
            elif isinstance(message, wire.Forked):
                self.workers = message.workers
                yield messages.Forked(list(message.pids))
            elif isinstance(message, wire.Said) and message.rank in self.ranks:
                yield message.rank, message.message
            elif isinstance(message, wire.Out) and message.rank in self.ranks:
                yield Output(message.rank, message.stream, message.data)
            elif isinstance(message, wire.Ended) and message.rank in self.ranks:
                yield messages.Ended(message.rank, message.code)
            elif isinstance(message, wire.Grown):
                self._bring(message)
            elif isinstance(message, wire.Swept):
                self.swept = True
                self.say(wire.End())
                yield messages.Swept()
            elif isinstance(message, wire.Trouble):
                self.swept = True
                raise LaunchError(f"On {self.name}: {message.message}", advice=message.advice)
            elif isinstance(message, wire.States):
                self._letters, self._warning = message.letters, message.warning

    def say(self, message: wire.ToAgent) -> None:
        self._agents.send(self.number, message)

    def spawn(self) -> None:
        assert self.begin is not None
        self.swept = False
        self.say(self.begin)

    def signal(self, number: int) -> None:
        self.say(wire.Signal(number))

    def ask_where(self, rank: int) -> bool:
        self.say(wire.Where(rank))
        return True

    def state_of(self, pid: int) -> str:
        pids = [worker.get("pid") for worker in self.workers]
        letters = dict(zip(pids, self._letters, strict=False))
        return letters.get(pid, "").strip("-")

    def look(self, now: float) -> str:
        warning, self._warning = self._warning, ""
        return f"On {self.name}: {warning}" if warning else ""

    def is_over(self) -> bool:
        return self.swept

    def destroy(self) -> None:
        self.say(wire.End())
        self._handle.kill(0.0)
        self.swept = True

    def close(self) -> None:
        """Ends the agent, and with it all of the run on its host."""
        self.say(wire.End())
        self._handle.kill(0.0 if self._is_lost else 5.0)

    def _check(self) -> None:
        """Raises LaunchError once if the host is lost."""
        threads.check()
        if self._is_lost or (self.begin is not None and self.swept):
            return
        why = self._handle.ended()
        if why is None and time.monotonic() - self._heard > LOST and self.begin is not None:
            why = f"it has not answered for {LOST:.0f} s"
        if why is not None:
            self._is_lost = self.swept = True
            raise HostLostError(self.name, self.ranks, why.rstrip("."))

    def _bring(self, grown: wire.Grown) -> None:
        """A part of the record comes home."""
        path = PurePosixPath(grown.name)
        if path.is_absolute() or ".." in path.parts or path.name == "run.json" or is_stopped():
            return
        try:
            make_folder((self._record / path).parent)
            with opened(self._record / path, append=True) as file:
                file.write(grown.data)
        except OSError as error:
            stop(self._record, error)
