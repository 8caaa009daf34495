"""What a host tells of itself before a run starts there, and trials of the network between hosts."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from paceline import threads
from paceline.launch.cluster.messages import Facts, Interface
from paceline.launch.versions import compared
from paceline.threads import Bell
from paceline.topology import discover

TRIAL = 4.0  # seconds to connect
NO_ANSWER = "no answer"


def find(script: str, folder: str) -> Facts:
    """The facts of this host. `script` is a path; empty: a module, which is not compared."""
    host = discover()
    return Facts(
        host=host.name,
        versions=compared(),
        at=time.time(),
        digest=digest(os.path.join(folder, script)) if script else "",
        has_folder=os.path.isdir(folder),
        interfaces=interfaces(),
        cores=host.usable_cores,
        gpus=len(host.gpus),
    )


def digest(path: str) -> str:
    """A short digest of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def interfaces() -> tuple[Interface, ...]:
    """The interfaces with an IPv4 address that are up, without the loopback."""
    states, found = psutil.net_if_stats(), []
    for name, addresses in psutil.net_if_addrs().items():
        state = states.get(name)
        for each in addresses:
            if each.family != socket.AF_INET or state is None or not state.isup:
                continue
            network = ipaddress.ip_interface(f"{each.address}/{each.netmask or 32}").network
            if not network.is_loopback:
                speed = state.speed if state.speed < 1 << 31 else 0  # of a virtual interface, it may be "unknown"
                found.append(Interface(name, each.address, str(network), speed))
    return tuple(found)


class Listeners:
    """Listens at addresses of this host, so that other hosts can try to connect. Each connection is closed at once: the
    kernel keeps no more than 64 that nobody has accepted, and strangers may hold these."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._sockets, self._over = list[socket.socket](), Bell()
        self._poll = select.poll()
        self._poll.register(self._over, select.POLLIN)
        for address in addresses:
            listener = socket.socket()
            try:
                listener.bind((address, 0))
                listener.setblocking(False)
                listener.listen(64)
                self._poll.register(listener, select.POLLIN)
            except OSError:
                listener.close()
                listener = socket.socket()  # port 0: nobody connects
            self._sockets.append(listener)
        self._thread = threads.start("trial of the network", self._serve)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(int(each.getsockname()[1]) for each in self._sockets)

    def close(self) -> None:
        self._over.ring()
        self._thread.join()
        self._over.close()
        for each in self._sockets:
            each.close()

    def _serve(self) -> None:
        listening = {each.fileno(): each for each in self._sockets}
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._over.fileno():
                    return
                with contextlib.suppress(OSError):  # its peer is gone already
                    listening[descriptor].accept()[0].close()


def connect_all(places: Sequence[tuple[str, str, int]], seconds: float = TRIAL) -> tuple[str, ...]:
    """Tries to connect to all places at once: (own address, address, port). For each, why it failed; empty if not."""
    failures = [NO_ANSWER] * len(places)
    pending: dict[int, tuple[int, socket.socket]] = {}
    poll, by = select.poll(), time.monotonic() + seconds
    for number, (own, address, port) in enumerate(places):
        connection = socket.socket()
        connection.setblocking(False)
        try:
            connection.bind((own, 0))
            connection.connect((address, port))
        except BlockingIOError:
            pass
        except OSError as error:
            failures[number] = error.strerror or str(error)
            connection.close()
            continue
        pending[connection.fileno()] = number, connection
        poll.register(connection, select.POLLOUT)
    while pending and (left := by - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(1000 * left):
            number, connection = pending.pop(descriptor)
            poll.unregister(descriptor)
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            failures[number] = os.strerror(code) if code else ""
            connection.close()
    for _, connection in pending.values():
        connection.close()
    return tuple(failures)
