"""Starts the servers of a run, and starts a server again when it has died.

The supervisor imports torch once and forks the servers, so that a server is back in milliseconds. Memory that it shares
with them counts each server's updates: a server that starts again knows how many it has lost. Servers end with their
supervisor; the supervisor ends with the process or pipe whose descriptor it was given.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import torch

from paceline import threads
from paceline.comm.memory.region import host_of_this_process
from paceline.record import stopping
from paceline.record.logs import open_log_at
from paceline.strategies.server.config import ServerConfig, Started, Stopped
from paceline.strategies.server.serve import serve

PDEATHSIG = 1
GRACE = 10.0  # seconds for a server's last write
SHORT_LIFE, TRIES = 2.0, 5  # seconds; a server that dies this young so many times in a row is given up


class Supervised:
    """One server's process."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self.counter = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the forks
        self.process = self.descriptor = self.ready = -1
        self.started, self.failures = 0.0, 0


class Supervisor:
    """`tell` gets each start of a server, with the addresses that workers connect to."""

    def __init__(self, config: ServerConfig, tell: Callable[[Started | Stopped], None]) -> None:
        self._config, self._tell = config, tell
        # A socket's path has 107 bytes at most. The folder's descriptor makes the path short, wherever the folder is.
        self._folder = os.open(config.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._poll = select.poll()
        here = f"ipc:///proc/{os.getpid()}/fd/{self._folder}/server"
        beyond = (f"tcp://{config.network}:*",) if config.network else ()
        self._servers = [Supervised((f"{here}{number}", *beyond)) for number in range(config.servers)]

    def run(self, until: int) -> None:
        """Keeps the servers running until the descriptor (a pipe's or a process's) reports an end, or until SIGTERM."""
        signal.signal(signal.SIGTERM, _end)
        self._poll.register(until, select.POLLIN)
        try:
            self._watch(until)
        except SystemExit:
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._stop()

    def _watch(self, until: int) -> None:
        for number in range(len(self._servers)):
            self._start(number)
        while True:
            for fd, _ in self._poll.poll():
                if fd == until:
                    return
                for number, server in enumerate(self._servers):
                    if fd == server.ready:
                        self._hear(number, server)
                    elif fd == server.descriptor:
                        self._restart(number, server)

    def _start(self, number: int) -> None:
        server = self._servers[number]
        reads, writes = os.pipe2(os.O_CLOEXEC)
        server.started = time.monotonic()
        child = os.fork()
        if child == 0:
            _become_server(self._config, number, server, writes)
        os.close(writes)
        server.process, server.descriptor, server.ready = child, os.pidfd_open(child), reads
        self._poll.register(server.descriptor, select.POLLIN)
        self._poll.register(reads, select.POLLIN)

    def _hear(self, number: int, server: Supervised) -> None:
        """A server listens; or it has died before it did."""
        said = os.read(server.ready, 65536)
        self._poll.unregister(server.ready)
        os.close(server.ready)
        server.ready = -1
        if said:
            server.addresses = tuple(msgspec.json.decode(said, type=list[str]))
            self._tell(Started(number, server.process, server.addresses, host_of_this_process()))

    def _restart(self, number: int, server: Supervised) -> None:
        status = self._bury(server)
        young = time.monotonic() - server.started < SHORT_LIFE
        server.failures = server.failures + 1 if young else 0
        if server.failures >= TRIES:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
            self._tell(Stopped(number, f"it died {TRIES} times at its start ({how})"))
        else:
            self._start(number)

    def _bury(self, server: Supervised) -> int:
        self._poll.unregister(server.descriptor)
        os.close(server.descriptor)
        server.descriptor = -1
        if server.ready >= 0:
            self._poll.unregister(server.ready)
            os.close(server.ready)
            server.ready = -1
        return os.waitpid(server.process, 0)[1]

    def _stop(self) -> None:
        alive = [server for server in self._servers if server.descriptor >= 0]
        for server in alive:
            os.kill(server.process, signal.SIGTERM)
        until = time.monotonic() + GRACE
        for server in alive:
            if not select.select([server.descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                os.kill(server.process, signal.SIGKILL)
            self._bury(server)
        os.close(self._folder)


def _end(number: int, frame: object) -> None:
    raise SystemExit


def supervise(config: ServerConfig, until: int, tell_to: int) -> None:
    """The main function of the supervisor's process: tells what happens in lines of JSON to a descriptor. Nobody need
    read there."""
    # A process's first optimizer imports this, which takes seconds: once here, and not in each restart.
    importlib.import_module("torch._dynamo")
    torch.sqrt(torch.ones(1, device="cpu"))  # one thread initialises MKL's functions, before there are forks
    os.set_blocking(tell_to, False)

    def tell(event: Started | Stopped) -> None:
        with suppress(OSError):
            os.write(tell_to, msgspec.json.encode([type(event).__name__, event]) + b"\n")

    gc.freeze()  # a fork need not copy what it will never free
    Supervisor(config, tell).run(until)


def _become_server(config: ServerConfig, number: int, server: Supervised, ready: int) -> NoReturn:
    status = 1
    try:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's affair
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threads.on_death = None  # that of the worker whose fork this is
        with suppress(OSError):  # a worker's fork has the cores of that worker
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        if config.record:
            stopping.listen(lambda error: None)  # the workers tell of the same disk
            log = open_log_at(Path(config.record) / f"log.server{number}.txt")
            os.dup2(log, 2)
            os.close(log)
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115

        def listens(addresses: tuple[str, ...]) -> None:
            os.write(ready, msgspec.json.encode(addresses))
            os.close(ready)

        serve(config, number, server.counter, server.addresses, listens)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)
