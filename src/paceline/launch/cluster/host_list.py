"""Which hosts a run has now: those that it was given, without those that are gone; or those that a program finds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from paceline import threads
from paceline.errors import PacelineError
from paceline.launch.cluster.backend import ClusterBackend
from paceline.launch.cluster.hosts import HostSpec, filled
from paceline.launch.cluster.ssh import SshHosts
from paceline.launch.host import HostsGoneError

EVERY = 5.0  # seconds between two looks for hosts that have come back or are new
AVOIDED = 30.0  # seconds in which a host that was lost is not used again, even if it is still listed


class HostList:
    """The hosts of one attempt after another. `least`: the workers that a run needs, None: all; `most`: the workers
    that it may have."""

    def __init__(self, backend: ClusterBackend, least: int | None, most: int | None) -> None:
        self._backend, self._least, self._most = backend, least, most
        self._gone: dict[str, float] = {}  # when each host was lost
        self.hosts = self._filled(backend.hosts())

    def look_again(self, error: BaseException | None) -> None:
        """An attempt has ended, with this error. Sets the hosts of the next one, if they are enough."""
        if isinstance(error, HostsGoneError):
            self._gone |= dict.fromkeys(error.names, time.monotonic())
        found = self._usable() if self._least is not None else []
        if found and sum(host.workers for host in found) >= (self._least or 0):
            self.hosts = found

    def lose(self, name: str) -> None:
        """A host is lost, and the run goes on without it."""
        self._gone[name] = time.monotonic()
        self.hosts = [host for host in self.hosts if host.name != name]

    @contextlib.contextmanager
    def watched(self, on_more: Callable[[], None]) -> Iterator[None]:
        """Looks for hosts during the block, and calls `on_more`, from a thread, once there are others than now."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(EVERY):
                if set(self._usable()) - set(self.hosts):
                    on_more()
                    return

        threads.start("hosts", look)
        try:
            yield
        finally:
            over.set()  # the thread may still wait for a host that does not answer: nobody waits for it

    def _usable(self) -> list[HostSpec]:
        try:
            listed = self._backend.hosts()
        except PacelineError:
            return self.hosts  # the program that lists them failed: nothing new is known
        now = time.monotonic()
        return self._filled([host for host in listed if host.name not in self._gone or self._is_back(host, now)])

    def _filled(self, listed: list[HostSpec]) -> list[HostSpec]:
        return listed if self._most is None else list(filled(listed, self._most))

    def _is_back(self, host: HostSpec, now: float) -> bool:
        """Only ssh can be asked."""
        late = now - self._gone[host.name] >= AVOIDED
        return late and isinstance(self._backend, SshHosts) and self._backend.reaches(host)
