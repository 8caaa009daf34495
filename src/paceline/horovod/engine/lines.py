"""The connections between rank 0 and every other rank, for negotiation only: tensors take other ways.

On one host under Paceline's launcher, a line is a pair of connected sockets that rank 0 makes and hands over through
the launcher: no port is opened. Otherwise rank 0 listens at a port, and the others prove with a secret from the run's
store that they belong to the run.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import struct
from typing import Any

from paceline.comm.hosts import address_towards
from paceline.comm.link.client import LinkStore
from paceline.horovod.engine.membership import Membership

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16
_SECRET = 32  # bytes


class LineClosed(Exception):
    """The process at the other end has ended, or has closed the line."""


class Line:
    """One connection. One thread uses it. A message is bytes of any length."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._came = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Sends a message. While the other end is busy, what comes from there is read: two ends that send much at the
        same time do not wait for each other."""
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                ready, _, _ = select.select([self._socket], [self._socket], [])
                if ready:
                    self._read()
            except OSError as error:
                raise LineClosed from error

    def receive(self) -> list[bytes]:
        """The messages that have come, without waiting. Messages that came before the end are not lost: `LineClosed` is
        raised by the next call."""
        try:
            self._read()
        except LineClosed:
            if not (found := self._cut()):
                raise
            return found
        return self._cut()

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                raise LineClosed from error
            if not chunk:
                raise LineClosed
            self._came += chunk
            if len(chunk) < _CHUNK:
                return

    def _cut(self) -> list[bytes]:
        found, at = [], 0
        while len(self._came) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._came, at)
            if len(self._came) - at - _LENGTH.size < length:
                break
            found.append(bytes(self._came[at + _LENGTH.size : at + _LENGTH.size + length]))
            at += _LENGTH.size + length
        del self._came[:at]
        return found


def connect(store: Any, member: Membership) -> dict[int, Line]:
    """Rank 0's lines to every other rank, or another rank's line to rank 0, by rank. Every rank calls it."""
    if isinstance(store, LinkStore) and member.is_one_host:
        return _through_launcher(store, member)
    return _listen(store, member) if member.rank == 0 else _dial(store, member)


def _through_launcher(store: LinkStore, member: Membership) -> dict[int, Line]:
    if member.rank:
        line = Line(socket.socket(fileno=store.take(f"line{member.rank}")))
        store.delete_key(f"line{member.rank}")
        return {0: line}
    lines = {}
    for rank in range(1, member.size):
        own, other = socket.socketpair()
        store.give(f"line{rank}", other.fileno())
        other.close()
        lines[rank] = Line(own)
    return lines


def _listen(store: Any, member: Membership) -> dict[int, Line]:
    settings = member.settings
    address = settings.address or address_towards(settings.store_host, settings.store_port)
    secret = secrets.token_bytes(_SECRET)
    lines: dict[int, Line] = {}
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        store.set("secret", secret)
        store.set("address", f"{address} {server.getsockname()[1]}")
        while len(lines) < member.size - 1:
            caller, _ = server.accept()
            caller.settimeout(10)
            try:
                said = caller.recv(_SECRET + _LENGTH.size, socket.MSG_WAITALL)
            except OSError:
                said = b""
            rank = _LENGTH.unpack(said[_SECRET:])[0] if len(said) == _SECRET + _LENGTH.size else 0
            if hmac.compare_digest(said[:_SECRET], secret) and 0 < rank < member.size and rank not in lines:
                lines[rank] = Line(caller)
            else:
                caller.close()
    return lines


def _dial(store: Any, member: Membership) -> dict[int, Line]:
    address, port = bytes(store.get("address")).decode().split()
    caller = socket.create_connection((address, int(port)))
    caller.sendall(bytes(store.get("secret")) + _LENGTH.pack(member.rank))
    return {0: Line(caller)}


class Waker:
    """Wakes a thread that sleeps in poll. Any thread may call `wake`."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def wake(self) -> None:
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._descriptor)
