"""The agent of one host: `python -m paceline.launch.cluster.agent`, started by a backend (`ssh`, …).

It reads from its standard input where the controller is, tells what it finds on its host, starts the host's workers
when the controller says so, and passes on what happens. It ends all of them when the controller ends, or no longer
answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import zmq

from paceline import threads
from paceline.errors import PacelineError
from paceline.launch import messages, placement
from paceline.launch.cluster import facts
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.line import Line, NoController, PassedOn
from paceline.launch.cluster.record_sync import RecordSync
from paceline.launch.control import ControlChannel
from paceline.launch.events import Output
from paceline.launch.gpu_choice import choose_gpus
from paceline.launch.host import LocalHost
from paceline.launch.local import describe_worker
from paceline.launch.scratch import remove_dead, scratch_folder
from paceline.launch.zygote.handle import Zygote
from paceline.record import prepare
from paceline.topology import discover
from paceline.wire.channel import BEAT, LOST
from paceline.wire.store import LinkServer

_TICK = 0.2  # seconds
_BRING = 1.0  # seconds between two looks at what the record has grown by


class Over(Exception):
    """The run has ended for this agent."""


class SilentController(Exception):
    """Nothing was heard of the controller for too long."""


class Agent:
    """The runs on this host, one after another."""

    def __init__(self, boot: wire.Boot, line: Line, zygote: Zygote, stdin: int) -> None:
        self._boot, self._line, self._zygote, self._stdin = boot, line, zygote, stdin
        self._run = contextlib.ExitStack()  # what one run uses
        self._look_at = self._bring_at = 0.0
        self._listeners: facts.Listeners | None = None
        self._host: LocalHost | None = None
        self._record_sync: RecordSync | None = None
        self._orders: list[messages.SpawnOrder] = []
        self._is_ready = zygote.ready is not None

    def serve(self, stack: contextlib.ExitStack) -> None:
        """Until no more run begins. `stack` is closed afterwards."""
        stack.callback(self._close_listeners)
        stack.callback(lambda: self._run.close())
        if self._is_ready:
            self._line.send(wire.Ready())
        while True:
            threads.check()
            self._turn()

    def _turn(self) -> None:
        poller: Any = zmq.Poller()
        own = (self._zygote.fileno(),) if self._host is None and not self._is_ready else ()
        for source in (self._line.bell, self._stdin, *own, *(self._host.sources() if self._host else ())):
            if source != -1:
                poller.register(source, zmq.POLLIN)
        ready = dict(poller.poll(int(1000 * _TICK)))
        if self._stdin in ready and not os.read(self._stdin, 4096):
            raise Over  # whoever has started this agent is gone
        for message in self._line.receive():
            self._do(message)
        if self._zygote.fileno() in ready and self._host is None:
            self._is_ready = isinstance(self._zygote.receive(), messages.Ready)
            self._line.send(wire.Ready())
        if self._host is not None:
            self._relay(self._host, ready)
        self._look_at_the_clock()

    def _do(self, message: wire.ToAgent) -> None:
        if isinstance(message, wire.Listen):
            self._close_listeners()
            self._listeners = facts.Listeners(message.addresses)
            self._line.send(wire.Listening(self._listeners.ports))
        elif isinstance(message, wire.Connect):
            self._line.send(wire.Reached(facts.connect_all(message.places)))
        elif isinstance(message, wire.Begin):
            self._close_listeners()
            self._begin(message)
        elif isinstance(message, messages.Signal):
            if self._host is not None and not self._host.swept:
                self._host.signal(message.number)
        elif isinstance(message, wire.Where):
            if self._host is not None:
                self._host.ask_where(message.rank)
        elif isinstance(message, wire.End):
            raise Over

    def _begin(self, begin: wire.Begin) -> None:
        stack = self._run
        scratch = stack.enter_context(scratch_folder(Path(self._boot.folder)))
        record = Path(scratch) / "record"
        prepare(record)
        self._record_sync = RecordSync(record)
        channel = ControlChannel(Path(scratch))
        stack.callback(channel.close)
        passed_on = PassedOn(self._boot, self._line.address, begin.number)
        links = stack.enter_context(LinkServer(begin.workers, passed_on))
        stack.callback(passed_on.stop)
        ranks = range(begin.first, begin.first + begin.workers)
        speakers = [rank for rank in ranks if rank == 0 or begin.run.elastic is not None]
        pipes: dict[int, tuple[int, Literal["stdout", "stderr"]]] = {}
        theirs = []
        for rank in speakers:
            for stream in ("stdout", "stderr"):
                read, write = os.pipe()
                pipes[read] = rank, stream
                theirs.append(write)
        self._host = LocalHost(
            self._line.address,
            ranks,
            zygote=self._zygote,
            channel=channel,
            pipes=pipes,
        )
        stack.callback(self._host.close)
        stack.callback(self._end_workers)  # first of all: they write to the folder that goes, too
        self._orders = self._place(begin, record, channel)
        spawn = messages.Spawn(self._orders, self._boot.folder, scratch, len(speakers))
        try:
            self._host.prepare(spawn, [*theirs, *(end.fileno() for end in links.ends)])
            self._host.spawn()
        finally:
            links.let_go()
            for end in theirs:
                os.close(end)

    def _place(self, begin: wire.Begin, record: Path, channel: ControlChannel) -> list[messages.SpawnOrder]:
        host = discover()
        chosen = choose_gpus(begin.workers, host)
        here = dataclasses.replace(begin.run, workers=begin.workers)
        assert self._zygote.ready is not None
        placed = placement.place(
            here,
            chosen.host if chosen else host,
            own_threads=self._zygote.ready.threads,
            near=chosen.near if chosen else (),
        )
        orders = []
        for worker in placed:
            settings = dataclasses.replace(
                worker,
                run=begin.run,
                rank=begin.first + worker.local_rank,
                world=begin.run.workers,
                host_rank=begin.host,
                hosts=begin.hosts,
                record=str(record),
                address=begin.address,
                interface=begin.interface,
                store_host=begin.master,
                store_port=begin.master_port,
                control=channel.address,
                control_key=channel.key,
                token=channel.token,
                terminal=begin.terminal,
            )
            orders.append(messages.SpawnOrder(settings, placement.environment(settings)))
        return orders

    def _relay(self, host: LocalHost, ready: dict[Any, int]) -> None:
        for happened in host.take(ready):
            if isinstance(happened, tuple):
                self._line.send(wire.Said(*happened))
            elif isinstance(happened, Output | messages.Ended):
                self._line.send(happened)
            elif isinstance(happened, messages.Forked):
                self._line.pids = happened.pids
                told = [describe_worker(order, pid) for order, pid in zip(self._orders, happened.pids, strict=True)]
                self._line.send(wire.Forked(tuple(happened.pids), tuple(msgspec.to_builtins(told))))
        if host.is_over() and self._record_sync is not None:
            for grown in self._record_sync.everything():
                self._line.send(grown)
            self._record_sync = self._host = None
            self._line.pids = ()
            self._run.close()
            self._line.send(messages.Swept())

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._line.silence > LOST:
            raise SilentController
        if now >= self._look_at and self._host is not None:
            self._look_at = now + BEAT
            if warning := self._host.look(now):
                self._line.send(wire.Warned(warning))
        if now >= self._bring_at and self._record_sync is not None:
            self._bring_at = now + _BRING
            for grown in self._record_sync.grown():
                self._line.send(grown)

    def _end_workers(self) -> None:
        """Nothing of the run is left on this host, whatever has happened."""
        if self._host is not None and not self._host.swept:
            self._host.destroy()

    def _close_listeners(self) -> None:
        if self._listeners is not None:
            self._listeners.close()
            self._listeners = None


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the controller decides; its end is seen by the end of standard input
    boot = msgspec.json.decode(sys.stdin.buffer.readline(), type=wire.Boot)
    stdin = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    remove_dead()
    return attend(boot, stdin, Zygote.start)


def attend(boot: wire.Boot, stdin: int, start: Callable[[], contextlib.AbstractContextManager[Zygote]]) -> int:
    """Looks after this host until the run is over there. Returns the exit code."""
    found = facts.find(boot.script, boot.folder)
    try:
        line = Line(boot)
    except NoController as error:
        print(f"this host cannot reach {error}", file=sys.stderr)
        return 3
    line.send(wire.Hello(msgspec.structs.replace(found, at=time.time())))  # strangers may have held the port for long
    with contextlib.ExitStack() as stack:
        stack.callback(line.close)
        try:
            with start() as zygote, contextlib.ExitStack() as started:
                Agent(boot, line, zygote, stdin).serve(started)
        except Over:
            pass
        except SilentController:  # the last line is what the controller tells of this host, should it answer again
            print(f"it heard nothing of the host where the run was started for {LOST:.0f} s", file=sys.stderr)
            return 3
        except PacelineError as error:
            line.send(wire.Trouble(error.message, error.advice))
        except Exception as error:
            line.send(wire.Trouble(f"{type(error).__name__}: {error}", ""))
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
