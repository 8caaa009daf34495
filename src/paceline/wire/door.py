"""A TCP port at which a CURVE socket listens, and what a process without the key can hold of it.

A stranger, who does not have the key, can open connections and send what it calls a handshake. So a handshake has to
end in time, a frame is small (messages are cut into frames, because a frame's memory is taken before its sender has
proved anything), and a `Door` lets no more connections in while too many have not ended their handshake.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
import time
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from paceline import threads

_HANDSHAKE = 10.0  # seconds that a peer has to prove its key
_UNPROVEN = 32  # connections whose handshake has not ended: with more than are expected, no others are let in
_PROBE = 5.0  # seconds: a connection that its peer closes earlier was a look whether the port can be reached

# The constants of Linux's packet filters, which Python does not name; and the filter that drops every packet.
_ATTACH, _DETACH = 26, 27
_RETURN = 0x06
_DROP = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_MONITOR_STOPPED
)


def place_of(address: str, port: int) -> str:
    """An address as ZeroMQ writes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


_doors: list[Door] = []  # of this process
_earlier = 0  # strangers at those that are closed


def strangers() -> int:
    """How many connections to this process came from processes without the key."""
    return _earlier + sum(door.strangers for door in list(_doors))


class Door:
    """A TCP port at which a socket listens for peers that know its public key. Used by the socket's thread."""

    def __init__(self, guarded: Any, address: str, port: int = 0, *, expected: int) -> None:
        """`guarded` has its keys. `expected`: how many peers may connect at once. OSError if it cannot listen there."""
        self._guarded, self._most, self._closed = guarded, _UNPROVEN + 2 * expected, False
        self._listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        guarded.setsockopt(zmq.IPV6, int(":" in address))
        try:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.setblocking(False)
            self._listening.bind((address, port))
            self._listening.listen(16)
            self.port: int = self._listening.getsockname()[1]
            guarded.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * _HANDSHAKE))
            self._monitor: Any = guarded.get_monitor_socket(_EVENTS)
            guarded.setsockopt(zmq.USE_FD, os.dup(self._listening.fileno()))  # ZeroMQ closes its own
            guarded.bind(place_of(address, self.port))
        except BaseException:
            self._listening.close()
            raise
        self._lock = threading.Lock()  # guards the counts
        self._open: dict[int, float] = {}  # when each connection was accepted, by descriptor
        self._proven: list[float] = []  # when peers proved the key, lately
        self._strangers = 0
        self._thread = threads.start(f"door of port {self.port}", self._serve)
        _doors.append(self)

    @property
    def strangers(self) -> int:
        """How many connections came from processes that have not proved the key. Those that still have time for it do
        not count."""
        with self._lock:
            return max(self._strangers - max(self._unproven(), 0), 0)

    def close(self) -> None:
        """Before the socket is closed."""
        global _earlier
        self._guarded.disable_monitor()
        self._thread.join()
        self._listening.close()
        _earlier += self.strangers
        _doors.remove(self)

    def _serve(self) -> None:
        was_failed = False  # whether the last event was that of a handshake
        while True:
            if self._monitor.poll(1000 if self._closed else None):
                event = recv_monitor_message(self._monitor)
                if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                    self._monitor.close(linger=0)
                    return
                with self._lock:
                    was_failed = self._note(event["event"], event["value"], was_failed)
            with self._lock:
                unproven = self._unproven()
            self._close(unproven > self._most)

    def _note(self, event: int, descriptor: int, was_failed: bool) -> bool:
        now = time.monotonic()
        if event == zmq.EVENT_ACCEPTED:
            self._open[descriptor] = now
            self._strangers += 1  # until it has proved something
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._proven.append(now)
            self._strangers -= 1
        elif event == zmq.EVENT_DISCONNECTED:
            began = self._open.pop(descriptor, now)
            self._strangers -= was_failed and now - began < _PROBE
        return event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

    def _unproven(self) -> int:
        """Connections whose handshake has not ended. ZeroMQ does not tell which one has proved the key: of those that
        are too young for the limit, as many as have proved it lately."""
        since = time.monotonic() - _HANDSHAKE - 1.0
        self._proven = [at for at in self._proven if at > since]
        return sum(at > since for at in self._open.values()) - len(self._proven)

    def _close(self, closed: bool) -> None:
        """Lets the kernel drop what comes to the listening socket, or not. Those who are in are not affected, and who
        wants to come in tries again by itself."""
        if closed == self._closed:
            return
        self._closed = closed
        try:
            if closed:
                program = struct.pack("HP", 1, ctypes.addressof(_DROP))
                self._listening.setsockopt(socket.SOL_SOCKET, _ATTACH, program)
            else:
                self._listening.setsockopt(socket.SOL_SOCKET, _DETACH, 0)
        except OSError as error:
            if error.errno not in (errno.ENOPROTOOPT, errno.EPERM):  # a kernel, or a sandbox, without filters
                raise
