"""A process that reaches a port of a run and does not have its key."""

from __future__ import annotations

import contextlib
import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
COMMAND = struct.pack("!BQ", 6, 48 << 20)  # a long command of ZMTP 3.0, of so many bytes
ENOUGH = 40 << 20  # bytes: more than the kernel holds


def pour(port: int, address: str = "127.0.0.1") -> int:
    """Sends the beginning of a handshake, and then a command that does not end. Returns how many bytes of it could be
    sent until the other side closed the connection; `ENOUGH` if it never did."""
    with socket.create_connection((address, port)) as connection:
        connection.settimeout(20)
        connection.sendall(GREETING)
        sent = 0
        with contextlib.suppress(OSError):
            connection.sendall(COMMAND)
            while sent < ENOUGH:
                sent += connection.send(bytes(1 << 20))
        return sent


def come(port: int, count: int) -> list[socket.socket]:
    """Opens connections and says nothing."""
    found = []
    for _ in range(count):
        found.append(socket.socket())
        found[-1].setblocking(False)
        with contextlib.suppress(BlockingIOError):
            found[-1].connect(("127.0.0.1", port))
    return found
