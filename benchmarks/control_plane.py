"""How the control plane of a run over hosts grows with the number of hosts, on one machine.

    python benchmarks/control_plane.py --hosts 10,100,1000

The controller is the real one (`launch_on`: its sockets and threads, the checks before the start, the watch). Each host
is the agent's real line to it, its real way to the store of the run, and the real protocol of a worker that loses peers
(`Members`), in threads of a few processes. Played are zygotes and scripts: a host has one worker, which beats twice a
second. Distances are those of one machine: add the round trips of a network.

For each number of hosts:

- start: from the command until all workers run, with the trial connections between the hosts;
- heartbeats: messages in both directions and the controller's CPU time, in 10 s without other events;
- loss: a tenth of the hosts ends at once, while all others wait for them in a collective (`Members.look`), until each
  has settled which collective counts (`settle`), and has the addresses of all others for the new group (`form`).

Where a phase takes longer than `--limit` seconds it is given up, and the line says so. Figures: docs/control-plane.md.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from paceline.comm.ending import Regrouping
from paceline.comm.members import Members
from paceline.errors import LaunchError, PacelineError
from paceline.launch import messages
from paceline.launch.cluster import controller, facts, preflight
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.hosts import HostSpec
from paceline.launch.cluster.line import Line, PassedOn
from paceline.launch.events import Event
from paceline.settings import RunSettings
from paceline.wire import store as say

PROCESSES = 4
BEAT = 0.5  # seconds between two heartbeats of a worker
QUIET = 10.0  # seconds in which only heartbeats are sent
NAPS = (0.02, 0.1)  # seconds between two looks of a worker that waits for its peers, as in elastic_channel.py
IDLE = messages.Beat(step=1, seam="", waiting="all_reduce", waited=0.0, collectives=1, view="batch", latest=None)


class Given(Exception):
    """The phase took too long."""


class Store:
    """What `Members` uses of a worker's store, over the agent's way to the controller's."""

    def __init__(self, passed_on: PassedOn, over: threading.Event) -> None:
        self._passed_on, self._over, self.link, self.asked = passed_on, over, self, 0
        self.while_waiting: Callable[[], None] | None = None

    def ask(self, ask: say.Ask) -> tuple[Any, list[int]]:
        if self._over.is_set():
            raise Given
        self.asked += 1
        return self._passed_on.do(ask, [])

    def get(self, key: str) -> bytes:
        nap = 0.001
        while (value := self.ask(say.Get(key))[0]) is None:
            if self.while_waiting is not None:
                self.while_waiting()
            time.sleep(nap)
            nap = min(2 * nap, 0.02)
        return value

    def set(self, key: str, value: bytes) -> None:
        self.ask(say.Set(key, value))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self.ask(say.CompareSet(key, expected, desired))[0]


class Host:
    """One host with one worker, in a thread of a playing process."""

    def __init__(self, boot: wire.Boot, over: threading.Event) -> None:
        self.number, self._boot, self._over = boot.number, boot, over
        self.line = Line(boot)
        self.line.send(wire.Hello(FOUND))
        self.line.send(wire.Ready())
        self._listeners = facts.Listeners(())
        self.begun = self.ended = False
        self.asked = 0
        self._beat_at = 0.0

    def turn(self) -> None:
        for message in self.line.receive():
            if isinstance(message, wire.Listen):
                self._listeners = facts.Listeners(message.addresses)
                self.line.send(wire.Listening(self._listeners.ports))
            elif isinstance(message, wire.Connect):
                self.line.send(wire.Reached(facts.connect_all(message.places)))
            elif isinstance(message, wire.Begin):
                self._listeners.close()
                worker = {"rank": message.first, "host": "", "pid": os.getpid(), "cores": [], "threads": 1}
                self.line.send(wire.Forked((os.getpid(),), (worker,)))
                self._world, self._run, self.begun = message.run.workers, message.number, True
            elif isinstance(message, wire.End | messages.Signal) and self.begun and not self.ended:
                self.finish()
        if self.begun and not self.ended and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + BEAT
            self.line.send(wire.Said(self.number, IDLE))

    def finish(self) -> None:
        self.ended = True
        self.line.send(wire.Said(self.number, msgspec.structs.replace(IDLE, waiting="", last=True)))
        self.line.send(messages.Ended(self.number, 0))
        self.line.send(messages.Swept())

    def regroup(self, left: int) -> None:
        """What a worker does when it waits for peers that are lost, until its group has `left` members."""
        passed_on = PassedOn(self._boot, self.line.address, self._run)
        store = Store(passed_on, self._over)
        members = Members(store, self.number, self._world)  # type: ignore[arg-type]

        def connect(rank: int, world: int) -> None:
            place = f"{members.generation}/letters"
            store.set(f"{place}{rank}", b"x" * 100)  # an address, a key and a token
            for peer in range(world):
                store.get(f"{place}{peer}")

        try:
            while len(members.ranks) > left:
                nap = NAPS[0]
                with contextlib.suppress(Regrouping):
                    while True:
                        members.look()
                        time.sleep(nap)
                        nap = min(2 * nap, NAPS[1])
                members.settle(1)
                members.form(connect)
        finally:
            self.asked = store.asked
            passed_on.stop()
            passed_on.close()


def play(orders: Connection) -> None:
    """A process that plays hosts. Orders: what to do, and its argument; each is answered."""
    hosts: dict[int, Host] = {}
    threads: list[threading.Thread] = []
    over = threading.Event()
    bells = select.poll()
    bells.register(orders.fileno(), select.POLLIN)
    failed: list[str] = []

    def regroup(host: Host, left: int) -> None:
        try:
            host.regroup(left)
        except (Given, EOFError):
            failed.append("given up")

    while True:
        bells.poll(100)
        for host in list(hosts.values()):
            host.turn()
        if not orders.poll():
            continue
        what, argument = orders.recv()
        answer: Any = None
        if what == "boot":
            for boot in argument:
                hosts[boot.number] = Host(boot, over)
                bells.register(hosts[boot.number].line.bell, select.POLLIN)
        elif what == "begun":
            answer = sum(host.begun for host in hosts.values())
        elif what == "counts":
            sent = sum(host.line._messages._sent for host in hosts.values())
            answer = sent, sum(host.line._messages.heard for host in hosts.values())
        elif what == "regroup":
            threads = [threading.Thread(target=regroup, args=(host, argument)) for host in hosts.values()]
            for thread in threads:
                thread.start()
        elif what == "lose":
            for number in set(argument) & hosts.keys():
                host = hosts.pop(number)
                bells.unregister(host.line.bell)
                host.line.close()
        elif what == "grouped":
            answer = sum(not thread.is_alive() for thread in threads), len(failed)
        elif what == "asked":
            answer = sum(host.asked for host in hosts.values())
        elif what == "finish":
            over.set()
            for thread in threads:
                thread.join()
            for host in hosts.values():
                if not host.ended:
                    host.finish()
        elif what == "close":
            for host in hosts.values():
                host.line.close()
            orders.send(None)
            return
        orders.send(answer)


class Played:
    """The ClusterBackend: hosts are spread over processes."""

    patience = 300.0

    def __init__(self, count: int, lines: list[Connection]) -> None:
        self._count, self._lines = count, lines
        self._boots: list[list[wire.Boot]] = [[] for _ in lines]
        self._booted, self.lost = False, set[int]()
        self._lock = threading.Lock()

    def hosts(self) -> list[HostSpec]:
        return [HostSpec(f"h{number}", 1) for number in range(self._count)]

    def words(self) -> list[str]:
        return []

    def start_agent(self, host: HostSpec, variables: Mapping[str, str], secret_on_stdin: bytes) -> PlayedHost:
        boot = msgspec.json.decode(secret_on_stdin, type=wire.Boot)
        self._boots[boot.number % len(self._lines)].append(msgspec.structs.replace(boot, addresses=("127.0.0.1",)))
        if self._booted:
            raise LaunchError("some hosts could not be used, and the run starts again without them")
        if boot.number == self._count - 1:
            self._booted = True
            self.ask("boot", self._boots)
        return PlayedHost(self, boot.number)

    def ask(self, what: str, arguments: list[Any] | None = None) -> list[Any]:
        with self._lock:
            for number, line in enumerate(self._lines):
                line.send((what, arguments[number] if arguments is not None else None))
            return [line.recv() for line in self._lines]

    def ask_all(self, what: str, argument: Any = None) -> list[Any]:
        return self.ask(what, [argument] * len(self._lines))


class PlayedHost:
    def __init__(self, backend: Played, number: int) -> None:
        self._backend, self._number = backend, number

    def ended(self) -> str | None:
        return "its machine is gone" if self._number in self._backend.lost else None

    def kill(self, patience: float = 5.0) -> None:
        pass


def drive(backend: Played, count: int, limit: float, tell: Callable[[str], None]) -> None:
    """Beside the controller: measures one phase after the other."""
    begun = time.monotonic()

    def until(so: Callable[[], bool]) -> tuple[str, float, float]:
        """The time until it was so in words, and the seconds of the controller's CPU and on the clock."""
        at, cpu = time.monotonic(), time.process_time()
        while not so() and time.monotonic() - at < limit:
            time.sleep(0.05)
        took, done = time.monotonic() - at, so()
        return f"{took:8.1f} s" if done else f"over {limit:3.0f} s", time.process_time() - cpu, took

    try:
        words, cpu, _ = until(lambda: sum(backend.ask("begun")) == count)
        words = words if words.startswith("over") else f"{time.monotonic() - begun:8.1f} s"
        tell(f"start       {words}, controller {cpu:6.1f} s of CPU")
        if words.startswith("over"):
            return
        before, cpu = backend.ask("counts"), time.process_time()
        time.sleep(QUIET)
        after, cpu = backend.ask("counts"), time.process_time() - cpu
        sent, heard = (sum(a[n] - b[n] for a, b in zip(after, before, strict=True)) / QUIET for n in (0, 1))
        tell(
            f"heartbeats  {sent:6.0f} messages/s to the controller, {heard:6.0f} from it, "
            f"{100 * cpu / QUIET:5.1f} % of a core"
        )
        lost = set(range(count - max(1, count // 10), count))
        left = count - len(lost)
        backend.ask_all("lose", sorted(lost))
        backend.ask_all("regroup", left)
        backend.lost |= lost
        words, cpu, _ = until(lambda: sum(done for done, _ in backend.ask("grouped")) == left)
        backend.ask("finish")
        asked = sum(backend.ask("asked"))
        tell(
            f"{len(lost):3} lost    {words}, controller {cpu:6.1f} s of CPU, "
            f"{asked:,} requests to the store ({asked / left:,.0f} a host)"
        )
    finally:
        with contextlib.suppress(OSError, EOFError):
            backend.ask("finish")


def measure(count: int, limit: float, folder: Path) -> None:
    pairs = [multiprocessing.Pipe() for _ in range(PROCESSES)]
    context = multiprocessing.get_context("fork")
    players = [context.Process(target=play, args=(there,)) for _, there in pairs]
    for player in players:
        player.start()

    def tell(text: str) -> None:
        print(f"{count:6} hosts  {text}", flush=True)

    backend = Played(count, [here for here, _ in pairs])
    run = RunSettings(script="train.py", workers=count, elastic=1, stall_warning=0.0, stall_abort=0.0)
    said: list[Event] = []
    driver = threading.Thread(target=drive, args=(backend, count, limit, tell))
    driver.start()
    at = time.monotonic()
    try:
        controller.launch_on(run, backend, record=folder / f"record{count}", on_event=said.append)
    except PacelineError as error:
        tell(f"ended after {time.monotonic() - at:.1f} s: {str(error)[:300]}")
    driver.join()
    backend.ask("close")
    for player in players:
        player.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="How the control plane grows with the number of hosts.")
    parser.add_argument("--hosts", default="10,100,1000", help="numbers of hosts")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one phase")
    args = parser.parse_args()
    global FOUND
    preflight.TRIAL = 60.0  # all hosts share the cores of this machine
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    folder = Path(tempfile.mkdtemp())
    home = os.getcwd()
    os.chdir(folder)
    try:
        Path("train.py").write_text("")
        FOUND = facts.find("train.py", str(folder))
        for count in map(int, args.hosts.split(",")):
            measure(count, args.limit, folder)
    finally:
        os.chdir(home)
        shutil.rmtree(folder)


FOUND: wire.Facts

if __name__ == "__main__":
    main()
