"""The controller's side of the agents: their sockets, and each host as the watch of a run sees it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from paceline import threads
from paceline.errors import LaunchError
from paceline.launch import messages
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.backend import Handle
from paceline.launch.cluster.host_clock import HostClock
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.events import Output
from paceline.launch.host import Happened, HostLostError
from paceline.record.private import make_folder, opened
from paceline.record.stopping import is_stopped, stop
from paceline.threads import Bell
from paceline.wire import channel, store
from paceline.wire.channel import LOST, Keys, Listener, Loop, frames_of, joined

CLOCK = 4  # heartbeats from one reading of a host's clock to the next
AWAY = 3.0  # seconds between two looks for messages: this process was stopped meanwhile


class Agents:
    """The controller's side of the lines to a run's agents, and the store of the run, which workers ask through them.
    Agents hear this process whatever the loop that watches the run waits for."""

    def __init__(self, count: int) -> None:
        # An agent first looks whether it reaches the port, and has two connections.
        self._listener = Listener(Keys.make(), "0.0.0.0", expected=3 * count)
        self.port, self.access = self._listener.port, self._listener.access
        self.bell = Bell()  # rings when a message has come
        self.inboxes: list[deque[wire.FromAgent]] = [deque() for _ in range(count)]
        self._came: deque[tuple[int, wire.FromAgent]] = deque()
        self._suspended = False
        self._peers: dict[int, bytes] = {}
        self._sequences = [channel.Sequence[wire.ToAgent]() for _ in range(count)]
        self._looked = time.monotonic()  # when the thread last looked for messages
        self._heard = [self._looked] * count  # when each agent was last heard
        self._values, self._lock, self._run = store.Values(), threading.Lock(), 0
        self.clocks, self._beats = [HostClock() for _ in range(count)], 0
        self._answered: dict[int, tuple[int, list[Any]]] = {}  # the last request of each agent, and its answer
        self._decoder = msgspec.msgpack.Decoder(wire.Envelope | wire.StoreAsk)
        self._loop = Loop[tuple[int, wire.ToAgent]](
            "line to the agents",
            lambda: (self._listener.socket,),
            turn=self._look,
            beat=self._beat,
            send=lambda posted: self._send_new(*posted),
            end=lambda: self._listener.close(linger=1000),
        )
        self._loop.start()

    def pump(self) -> None:
        """Sorts all messages that have arrived into the hosts' inboxes; never waits."""
        self.bell.clear()
        while self._came:
            number, message = self._came.popleft()
            self.inboxes[number].append(message)

    def send(self, number: int, message: wire.ToAgent) -> None:
        """Sends a message to an agent, if it has said something before."""
        self._loop.post((number, message))

    def silence(self, number: int) -> float:
        """Seconds since an agent was last heard. Time in which this process was stopped itself does not count."""
        return self._looked - self._heard[number]

    @property
    def strangers(self) -> int:
        """Connections to this process from processes that do not have the key of the run."""
        return self._listener.strangers

    def put(self, key: str, value: bytes) -> None:
        """Sets a key of the workers' store. Any thread may call it."""
        with self._lock:
            self._values.do(store.Set(key, value), [])

    def renew(self) -> int:
        """The number of the next run. Its store is empty, and requests of workers of an earlier run are ignored."""
        with self._lock:
            self._run, self._values = self._run + 1, store.Values()
            self._answered.clear()
        return self._run

    def suspend(self, seconds: float = 2.0) -> None:
        """Before this process is stopped: the agents do without heartbeats until `resume`. Waits until all know it."""
        self._suspended = True
        for number in range(len(self.inboxes)):
            self.send(number, wire.Suspended())
        by = time.monotonic() + seconds
        while time.monotonic() < by and (
            self._loop.posted or any(self._sequences[number].waits for number in list(self._peers))
        ):
            time.sleep(0.01)

    def resume(self) -> None:
        self._suspended = False

    def close(self) -> None:
        """Ends the thread, after what it still has to send."""
        self._loop.close()
        self.bell.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._beats += 1
        for number in () if self._suspended else self._peers:
            asks = self.clocks[number].wants_more or not self._beats % CLOCK
            self._send_new(number, wire.Alive(time.time() if asks else 0.0))

    def _look(self) -> None:
        if (away := time.monotonic() - self._looked) > AWAY:
            self._heard = [heard + away for heard in self._heard]
        for peer, frames in self._listener.receive():
            with contextlib.suppress(msgspec.DecodeError):
                told = self._decoder.decode(joined(frames))
                if isinstance(told, wire.StoreAsk):
                    self._answer(peer, told)
                else:
                    self._take(peer, told)
        self._looked = time.monotonic()

    def _take(self, peer: bytes, envelope: wire.Envelope) -> None:
        number, message = envelope.number, envelope.message
        if not 0 <= number < len(self._sequences):
            return
        self._heard[number] = time.monotonic()
        sequence, known = self._sequences[number], self._peers.get(number, peer)
        self._peers[number] = peer
        if sequence.accepts(envelope.place, envelope.heard):
            if isinstance(message, wire.Clock):
                self.clocks[number].take(message.asked, message.at, time.time())
                if self.clocks[number].wants_more:
                    self._send_new(number, wire.Alive(time.time()))
                return
            self._came.append((number, message))
            if not isinstance(message, wire.States):  # a heartbeat can wait for the loop's next turn
                self.bell.ring()
        for place, order in sequence.unheard() if known != peer else ():  # over a new connection
            self._send(number, order, place)

    def _answer(self, peer: bytes, asked: wire.StoreAsk) -> None:
        if asked.run != self._run:
            return
        if asked.place != self._answered.get(asked.number, (0, []))[0]:
            try:
                with self._lock:
                    told = store.Told(self._values.do(asked.ask, [])[0])
            except Exception as error:  # of this request
                told = store.refusal(error)
            answer = frames_of(msgspec.msgpack.encode(wire.StoreTold(asked.place, told)))
            self._answered[asked.number] = asked.place, answer
        self._listener.send(peer, self._answered[asked.number][1])

    def _send_new(self, number: int, message: wire.ToAgent) -> None:
        if number in self._peers:
            self._send(number, message, self._sequences[number].add(message))

    def _send(self, number: int, message: wire.ToAgent, place: int) -> None:
        order = wire.Order(message, place, self._sequences[number].heard)
        self._listener.send(self._peers[number], frames_of(msgspec.msgpack.encode(order)))


class RemoteHost:
    """One host, which an agent looks after, in one run after another."""

    def __init__(
        self, spec: HostSpec, number: int, first: int, *, agents: Agents, handle: Handle, record: Path
    ) -> None:
        self.name, self.ranks, self.swept = spec.name, range(first, first + spec.workers), True
        self.number, self._agents, self._handle, self._record = number, agents, handle, record
        self.is_ready = False
        self.workers: Sequence[dict[str, Any]] = ()  # for the record
        self.begin: wire.Begin | None = None
        self._letters, self._warning = "", ""
        self._is_lost = False

    def assign(self, first: int, workers: int, record: Path) -> None:
        """The host takes part in a new run, with so many workers. Raises LaunchError if it is gone."""
        self.ranks, self._record = range(first, first + workers), record
        self.begin, self.workers, self._letters, self._warning = None, (), "", ""
        for _ in self.take({}):  # what came since the last run
            pass
        self.swept = True

    @property
    def is_fit(self) -> bool:
        """Whether another run can begin there."""
        return self.swept and not self._is_lost

    def expect(self) -> Iterator[wire.FromAgent]:
        """What the agent has said before its workers were started; never waits. Raises LaunchError if it is gone."""
        self._agents.pump()
        inbox = self._agents.inboxes[self.number]
        while inbox:
            yield inbox.popleft()
        self._check()

    def sources(self) -> Sequence[Any]:
        return (self._agents.bell,)

    def take(self, ready: Mapping[Any, int]) -> Iterator[Happened]:
        for message in self.expect():
            if isinstance(message, wire.Ready):
                self.is_ready = True
            elif isinstance(message, wire.Forked):
                self.workers = message.workers
                yield messages.Forked(list(message.pids))
            elif isinstance(message, wire.Said) and message.rank in self.ranks:
                yield message.rank, message.message
            elif isinstance(message, Output | messages.Ended) and message.rank in self.ranks:
                yield message
            elif isinstance(message, wire.Grown):
                self._bring(message)
            elif isinstance(message, messages.Swept):
                self.swept = True
                yield message
            elif isinstance(message, wire.Trouble):
                self.swept = True
                raise LaunchError(f"On {self.name}: {message.message}", advice=message.advice)
            elif isinstance(message, wire.States):
                self._letters = message.letters
            elif isinstance(message, wire.Warned):
                self._warning = message.text

    def say(self, message: wire.ToAgent) -> None:
        self._agents.send(self.number, message)

    def spawn(self) -> None:
        assert self.begin is not None
        self.swept = False
        self.say(self.begin)

    def signal(self, number: int) -> None:
        self.say(messages.Signal(number))

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
        self.swept = self._is_lost = True

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
        if why is None and self._agents.silence(self.number) > LOST and self.begin is not None:
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
