"""A server's process: one loop over its socket, its workers' processes and the clock.

Nothing that arrives ends a server: what cannot be decoded, or makes no sense, is counted and logged. The server ends by
SIGTERM, after a last write, or with its supervisor.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq

from paceline import threads, units
from paceline.comm.memory.region import Region, host_of_this_process
from paceline.errors import PeerLostError
from paceline.record.servers import ServerReport, write_report
from paceline.strategies.server import messages as say
from paceline.strategies.server import shard_file
from paceline.strategies.server.config import ServerConfig
from paceline.strategies.server.shard import Shard
from paceline.strategies.server.space import MalformedError, Pace, Pushed, Space
from paceline.threads import Bell
from paceline.wire.channel import Listener

TOLD = 20  # malformed messages that are logged one by one
COUNTER = struct.Struct("<QQ")  # updates made, starts: in memory that outlives the server
TICK = 0.25  # seconds


class Server:
    """Server number `number`. `counter` is memory that outlives the process, where it counts its updates."""

    def __init__(self, config: ServerConfig, number: int, counter: mmap.mmap) -> None:
        self.config, self.number, self._counter = config, number, counter
        self.host = host_of_this_process()
        self.spaces: dict[int, Space] = {}
        self.updates = 0
        self.lost = 0
        self.staleness: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self._notices = list[str]()
        self._path = Path(config.folder) / f"server{number}.shard"
        self._writer: tuple[int, int] | None = None  # the process that writes the shard, and the updates in it
        self._written, self._next_write = -1, time.monotonic() + config.write_every
        self._over, self._bell = False, Bell()
        self._listener: Listener  # from `bind` on
        self._logged = 0  # strangers
        self._poller = zmq.Poller()
        self.members = Members(self._poller, self._on_gone)
        self._restore()

    # -- life ---------------------------------------------------------------------------------------------------------

    def bind(self, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Listens at a socket of this host, and at an address of TCP if there is one. Returns the addresses, with the
        port that the kernel has chosen."""
        path, *beyond = addresses
        host, _, port = beyond[0].removeprefix("tcp://").rpartition(":") if beyond else ("", "", "0")
        until = time.monotonic() + 5
        while True:
            try:
                self._listener = Listener(
                    self.config.keys,
                    host.strip("[]"),
                    0 if port == "*" else int(port),
                    expected=2 * self.config.workers,  # connections: all come again when a server has started again
                    path=path,
                )
                return (path, self._listener.place) if beyond else (path,)
            except (OSError, zmq.ZMQError) as error:  # the socket of the server's last life may still be closing
                if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def run(self) -> None:
        """Serves until SIGTERM."""
        signal.signal(signal.SIGTERM, self._stop)
        for own in (self._listener.socket, self._bell.fileno()):
            self._poller.register(own, zmq.POLLIN)
        next_look = time.monotonic() + TICK
        while not self._over:
            for source, _ in self._poller.poll(int(1000 * TICK)):
                if source is self._listener.socket:
                    self._receive()
                elif source != self._bell.fileno():
                    self.members.end_of(source)
            if time.monotonic() >= next_look:
                self._look_at_the_clock()
                next_look = time.monotonic() + TICK
        if self.config.last_write:
            self._write(here=True)
        self._report()
        self._listener.close(linger=500)

    def log(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} server {self.number}: {text}", file=sys.stderr, flush=True)

    def _stop(self, number: int, frame: Any) -> None:
        self._over = True
        self._bell.ring()

    @property
    def _refused(self) -> int:
        """Connections, and messages, of processes without the keys of this run."""
        return self._listener.strangers + self._listener.refused

    def _look_at_the_clock(self) -> None:
        threads.check()
        now = time.monotonic()
        if self._refused >= max(1, 2 * self._logged):  # ever more rarely
            self._logged = self._refused
            self.log(f"refused {units.count(self._logged, 'connection')} of processes that do not have the run's keys")
        self.members.drop_silent(now, self.config.silence)
        self._reap_writer()
        if now >= self._next_write:
            self._next_write = now + self.config.write_every
            self._write()
            self._report()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Handles every message that has arrived, but looks at other sources now and then."""
        for peer, frames in islice(self._listener.receive(copy=False), 64):
            self._handle(peer, frames)

    def _handle(self, peer: bytes, frames: list[memoryview]) -> None:
        ask: say.Ask | None = None
        try:
            body, numbers = say.parted(frames)
            ask = say.decode_ask(body)
            self._answer(peer, ask, numbers)
        except (MalformedError, msgspec.DecodeError, ValueError, IndexError, KeyError) as error:
            self.counts["malformed"] += 1
            if self.counts["malformed"] <= TOLD:
                self.log(f"ignored a malformed message: {error}")
            if ask is not None:
                self._send(peer, say.Refused(ask.request, f"{type(error).__name__}: {error}"))
        except Exception:  # a fault of one message must not end the server
            self.counts["errors"] += 1
            self.log(f"could not handle a message:\n{traceback.format_exc()}")
            if ask is not None:
                self._send(peer, say.Refused(ask.request, traceback.format_exc().strip().splitlines()[-1]))

    def _answer(self, peer: bytes, ask: say.Ask, numbers: memoryview | None) -> None:
        if isinstance(ask, say.Hello):
            self._welcome(peer, ask)
            return
        if not self.members.hear(ask.worker):
            self._send(peer, say.Unknown(ask.request))
        elif isinstance(ask, say.Beat):
            self._send(peer, say.Pong(ask.request, self.starts))
        elif isinstance(ask, say.Open):
            self._open(peer, ask, numbers)
        elif isinstance(ask, say.Bye):
            self.members.drop(ask.worker, "")
            if not self.members:
                self._report()  # this may be the end of the run, which gives a server little time
            self._send(peer, say.Told(ask.request, None))
        else:
            self._of_space(peer, ask, numbers)

    def _of_space(
        self,
        peer: bytes,
        ask: say.Push | say.Pull | say.State | say.Load | say.Assign,
        numbers: memoryview | None,
    ) -> None:
        space = self.spaces.get(ask.space)
        if space is None or ask.worker not in space.seats:
            self._send(peer, say.Unknown(ask.request))
        elif isinstance(ask, say.Push):
            space.push(peer, ask, numbers)
        elif isinstance(ask, say.Pull):
            space.pull(peer, ask.worker, ask.request)
        elif isinstance(ask, say.Load):
            if ask.force or not (space.shard.version or space.is_loaded):
                space.load(ask.state, numbers or memoryview(b""))
            self._send(peer, say.Told(ask.request, None))
        elif isinstance(ask, say.Assign):
            space.assign(ask.worker, numbers)
            self._send(peer, say.Told(ask.request, None))
        else:
            described, tensors = space.shard.state()
            body = b"".join(bytes(shard_file.raw(tensor)) for tensor in tensors)
            self._send(peer, say.Told(ask.request, msgspec.msgpack.encode(described)), body)

    def _welcome(self, peer: bytes, ask: say.Hello) -> None:
        replaced = self.members.join(ask, same_host=ask.host == self.host)
        for space in self.spaces.values():
            if replaced is not None and replaced in space.pace.clocks:
                space.pace.join(ask.worker, space.pace.clocks.pop(replaced))
        self._send(peer, say.Welcome(ask.request, self.number, self.starts, tuple(self._notices)))

    def _open(self, peer: bytes, ask: say.Open, numbers: memoryview | None) -> None:
        memory = None
        if ask.memory is not None and self.members.is_here(ask.worker):
            try:
                memory = Region.of(*ask.memory)
            except (PeerLostError, OSError, ValueError) as error:  # such as two containers on one host
                self.log(f"worker {self.members.rank(ask.worker)} sends frames: its memory cannot be opened ({error})")
        space = self.spaces.get(ask.space)
        if space is None:
            if memory is None and numbers is None:  # the worker does not know yet that it must send numbers
                self._send(peer, say.Numbers(ask.request, -1, 0, -1, False))
                return
            space = self._make_space(ask, memory, numbers)
        elif not space.fits(ask):
            raise MalformedError(
                f"other parameters than those of worker {self.members.first} for optimizer {ask.space}"
            )
        space.seat(ask, memory)
        if ask.worker not in space.pace.clocks or ask.clock is not None:
            space.pace.join(ask.worker, ask.clock)
        space.pull(peer, ask.worker, ask.request)
        space.go_on()

    def _make_space(self, ask: say.Open, memory: Region | None, numbers: memoryview | None) -> Space:
        shard = Shard(ask.tensors, ask.share, ask.optimizer)
        size = shard.memory.numel()
        if memory is not None:
            shard.memory.copy_(memory.bytes[ask.share.begin : ask.share.end])
        elif numbers is None or len(numbers) != size:
            raise MalformedError("initial parameters of another size")
        elif size:
            shard_file.raw(shard.memory)[:] = numbers
        shard.version = max(0, ask.seen)
        pace: Pace[Pushed] = Pace(self.config.bound, workers=self.config.workers, backup=self.config.backup)
        for worker in self.members.founders:
            pace.join(worker, 0)
        space = self.spaces[ask.space] = self._space(shard, pace)
        self.log(
            f"holds {units.size(size)} of optimizer {ask.space}: {len(shard.parameters)} tensors, {ask.optimizer.path}"
        )
        self._written = -1
        self._write(here=True)  # from now on a restart has something to go on from
        return space

    def _space(self, shard: Shard, pace: Pace[Pushed]) -> Space:
        return Space(
            shard,
            pace,
            correction=self.config.correction,
            send=self._send,
            on_update=self._on_update,
            rank_of=self.members.rank,
        )

    def _send(self, peer: bytes, answer: say.Answer, numbers: bytes | None = None) -> None:
        self._listener.send(peer, say.framed(answer, numbers), copy=numbers is None)

    def _on_update(self, staleness: int) -> None:
        self.updates += 1
        self.staleness[staleness] += 1
        COUNTER.pack_into(self._counter, 0, self.updates, self.starts)

    def _on_gone(self, worker: int, text: str) -> None:
        if text:
            self.log(text)
        for space in self.spaces.values():
            space.leave(worker)

    # -- the shard's file ---------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        made, starts = COUNTER.unpack_from(self._counter, 0)
        self.starts = starts + 1
        if self._path.exists():
            contents, shards = shard_file.read(self._path)
            self.updates, self.staleness = contents.updates, Counter(contents.staleness)
            known = {worker for entry in contents.spaces for worker in entry.clocks}
            self.members.expect(known, time.monotonic() + self.config.rejoin)
            for entry, shard in zip(contents.spaces, shards, strict=True):
                pace: Pace[Pushed] = Pace(self.config.bound, workers=self.config.workers, backup=self.config.backup)
                for worker, clock in entry.clocks.items():
                    pace.join(worker, clock)
                space = self.spaces[entry.space] = self._space(shard, pace)
                space.applied = dict(entry.applied)
        else:
            self.members.expect(set(range(-self.config.workers, 0)), time.monotonic() + self.config.patience)
        if self.starts > 1:
            self.lost = max(0, made - self.updates)
            self._notices.append(
                f"Server {self.number} was restarted and goes on from update {self.updates}: the last "
                f"{units.count(self.lost, 'update')} since its last write {'is' if self.lost == 1 else 'are'} lost."
            )
            self.log(self._notices[-1])
        COUNTER.pack_into(self._counter, 0, self.updates, self.starts)

    def _write(self, *, here: bool = False) -> None:
        """Writes the shard, in a fork: it has this moment's memory, and the server goes on. At the end, `here`."""
        if not self.spaces or self._written == self.updates or (self._writer is not None and not here):
            return
        draft = shard_file.Draft()
        for number, space in self.spaces.items():
            draft.add(number, space.shard, space.applied, space.pace.clocks)
        contents = shard_file.Contents(self.number, self.updates, dict(self.staleness), tuple(draft.spaces))
        if here:
            self._reap_writer(wait=True)
            draft.write(self._path, contents)
            return
        child = os.fork()
        if child == 0:
            status = 1
            try:
                draft.write(self._path, contents)
                status = 0
            finally:
                os._exit(status)
        self._writer = child, self.updates

    def _reap_writer(self, *, wait: bool = False) -> None:
        if self._writer is None:
            return
        child, updates = self._writer
        done, status = os.waitpid(child, 0 if wait else os.WNOHANG)
        if done:
            self._writer = None
            if status == 0:
                self._written = updates
            else:
                self.log(f"could not write {self._path}: the next write is in {self.config.write_every:.0f} s")

    def _report(self) -> None:
        if not self.config.record:
            return
        counts = self.counts + sum((space.counts for space in self.spaces.values()), Counter[str]())
        report = ServerReport(
            server=self.number,
            updates=self.updates,
            bytes=sum(space.shard.memory.numel() for space in self.spaces.values()),
            staleness=dict(sorted(self.staleness.items())),
            duplicates=counts["duplicates"],
            dropped=counts["dropped"],
            lost=self.lost,
            starts=self.starts,
            refused=self._refused,
            malformed=counts["malformed"],
        )
        write_report(Path(self.config.record), report)


def serve(config: ServerConfig, number: int, counter: mmap.mmap, addresses: tuple[str, ...], ready: Any) -> None:
    """The main function of a server's process. `ready(addresses)` is called when workers may connect."""
    torch.set_num_threads(config.threads)
    server = Server(config, number, counter)
    ready(server.bind(addresses))
    server.run()


# -- the workers of a server ------------------------------------------------------------------------------------------
# On the same host the kernel tells when a worker's process ends. A worker on another host, or a stopped one, is gone
# when its heartbeats have been missing for a while. A worker that was taken for gone may come back.


@dataclass
class Member:
    rank: int
    heard: float  # when
    process: int | None  # a process descriptor (pidfd), on the same host


class Members:
    """`on_gone(worker, text)` is called for each worker that ends; the text is for the log."""

    def __init__(self, poller: Any, on_gone: Callable[[int, str], None]) -> None:
        self._poller, self._on_gone = poller, on_gone
        self._members: dict[int, Member] = {}
        self._expected: set[int] = set()  # that will join: those of the server's last life, or any (negative numbers)
        self._until = 0.0
        self._founders: set[int] = set()
        self.first = 0  # the rank of the first worker

    def expect(self, workers: set[int], until: float) -> None:
        """These workers will join: rounds wait for them until then. A negative number stands for any worker."""
        self._expected, self._until = set(workers), until
        self._founders |= workers

    @property
    def founders(self) -> set[int]:
        """The workers that started the run, and those still expected: every optimizer's first steps wait for them."""
        return self._founders & (self._members.keys() | self._expected)

    def join(self, hello: say.Hello, *, same_host: bool) -> int | None:
        """A worker comes, or comes back. Returns the number of the expected worker whose place it takes."""
        if not self._members:
            self.first = hello.rank
        known = self._members.get(hello.worker)
        if known is not None:
            known.heard = time.monotonic()
            return None
        process = None
        if same_host:
            with contextlib.suppress(OSError):
                process = os.pidfd_open(hello.process)
                self._poller.register(process, zmq.POLLIN)
        self._members[hello.worker] = Member(hello.rank, time.monotonic(), process)
        if hello.worker in self._expected:
            self._expected.discard(hello.worker)
            return None
        anybody = next((place for place in self._expected if place < 0), None)
        if anybody is not None:
            self._expected.discard(anybody)
            self._founders.discard(anybody)
            self._founders.add(hello.worker)
        return anybody

    def hear(self, worker: int) -> bool:
        """Notes a message of a worker. False if the worker is not known."""
        member = self._members.get(worker)
        if member is None:
            return False
        member.heard = time.monotonic()
        return True

    def __bool__(self) -> bool:
        return bool(self._members)

    def rank(self, worker: int) -> int:
        member = self._members.get(worker)
        return -1 if member is None else member.rank

    def is_here(self, worker: int) -> bool:
        """Whether a worker runs on the same host."""
        member = self._members.get(worker)
        return member is not None and member.process is not None

    def end_of(self, process: int) -> None:
        """The kernel reports the end of a process."""
        for worker, member in list(self._members.items()):
            if member.process == process:
                self.drop(worker, f"worker {member.rank} has ended; the others go on")

    def drop(self, worker: int, text: str) -> None:
        """A worker is gone."""
        member = self._members.pop(worker, None)
        if member is not None and member.process is not None:
            self._poller.unregister(member.process)
            os.close(member.process)
        self._expected.discard(worker)
        self._on_gone(worker, text)

    def drop_silent(self, now: float, silence: float) -> None:
        """Drops workers without a heartbeat, and expected ones that have not come."""
        for worker, member in list(self._members.items()):
            if now - member.heard > silence:
                self.drop(worker, f"worker {member.rank} has been silent for {silence:.0f} s; the others go on")
        if self._expected and now > self._until:
            for worker in list(self._expected):
                self.drop(worker, "a worker did not join in time; the others go on")
