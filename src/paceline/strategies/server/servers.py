"""Starts the servers of a run from another process, and says where they are."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import warnings
from types import TracebackType
from typing import Any, Self

import msgspec

from paceline.errors import LaunchError
from paceline.strategies.server.config import ServerConfig, Started, Stopped
from paceline.strategies.server.supervisor import supervise


class Addresses(msgspec.Struct, frozen=True):
    """Where a run's servers are: each one's addresses, and the host on which they share memory with workers."""

    host: str
    servers: tuple[tuple[str, ...], ...]


class Servers:
    """The servers, which live until `close`, or until this process or its `guardian` ends."""

    def __init__(self, config: ServerConfig, *, fork: bool = False, guardian: int | None = None) -> None:
        """With `fork`, the supervisor is a fork of this process, which must have imported torch and not yet computed
        with several threads; else a new process. With `guardian`, servers outlive this process, and end with the
        process of that number."""
        self._count = config.servers
        (reads, self._hold), (told, tells) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        if guardian is not None:
            os.close(reads)
            reads = os.pidfd_open(guardian)
        self._told = Told(told)
        if fork:
            self._process = _forked(config, reads, tells)
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paceline.strategies.server"], stdin=reads, stdout=tells
            ).pid
            os.write(self._hold, msgspec.json.encode(config) + b"\n")
        os.close(reads)
        os.close(tells)

    def addresses(self, timeout: float = 120.0) -> Addresses:
        """Waits until every server listens. Raises LaunchError if one cannot be started."""
        return self._told.until(self._count, timeout)

    def processes(self) -> dict[int, int]:
        """The present process of each server."""
        self._told.read(0.0)
        return {number: started.process for number, started in self._told.started.items()}

    def close(self) -> None:
        """Ends the servers, after a last write of their shards."""
        os.close(self._hold)
        os.waitpid(self._process, 0)
        os.close(self._told.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Told:
    """Reads what a supervisor tells."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._rest = descriptor, b""
        self.started: dict[int, Started] = {}

    def until(self, servers: int, timeout: float) -> Addresses:
        """Waits for the first start of all servers."""
        by = time.monotonic() + timeout
        while len(self.started) < servers:
            if not self.read(by - time.monotonic()):
                raise LaunchError(
                    f"Of {servers} parameter servers, {len(self.started)} listened after {timeout:.0f} s.",
                    advice="Look into log.server0.txt of the run's record.",
                )
        first = self.started[0]
        return Addresses(first.host, tuple(self.started[number].addresses for number in range(servers)))

    def read(self, timeout: float) -> bool:
        """Reads what has come; waits for something. False if nothing came."""
        if not select.select([self.descriptor], [], [], max(0.0, timeout))[0]:
            return False
        data = os.read(self.descriptor, 65536)
        if not data:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind, event = msgspec.json.decode(line, type=tuple[str, Any])
            if kind == Stopped.__name__:
                stopped = msgspec.convert(event, Stopped)
                raise LaunchError(
                    f"Parameter server {stopped.server} cannot be started: {stopped.reason}.",
                    advice=f"Look into log.server{stopped.server}.txt of the run's record.",
                )
            started = msgspec.convert(event, Started)
            self.started[started.server] = started
        return True


def _forked(config: ServerConfig, reads: int, tells: int) -> int:
    """A fork that is the supervisor. It keeps none of this process's descriptors: their other ends may wait for their
    end. Its errors go where the servers' do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of newer Pythons, about a fork beside threads: the fork uses none of theirs
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)  # the launcher ends a worker's process group with the worker
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's affair
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1) if not config.record else (0, 1, 2):
            os.dup2(nothing, descriptor)
        kept = sorted({reads, tells})
        most = max(int(name) for name in os.listdir("/proc/self/fd"))
        for low, high in zip((2, *kept), (*kept, most + 1), strict=True):
            os.closerange(low + 1, high)
        supervise(config, reads, tells)
        status = 0
    finally:
        os._exit(status)
