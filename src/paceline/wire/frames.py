"""Messages with file descriptors over a Unix socket: body length, number of descriptors, the descriptors, the body.

Both ends of the socket are processes of one run. Bodies are msgpack: decoding yields data and never runs code.
"""

from __future__ import annotations

import os
import socket
import struct

_HEAD = struct.Struct("!II")  # bytes of the body, number of descriptors
_AT_ONCE = 250  # descriptors per message: the kernel's limit is 253


def send(connection: socket.socket, body: bytes, descriptors: list[int] | None = None) -> None:
    """Sends one message. The descriptors stay open in this process."""
    descriptors = descriptors or []
    connection.sendall(_HEAD.pack(len(body), len(descriptors)))
    for at in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(connection, [b"\0"], descriptors[at : at + _AT_ONCE])
    if body:  # an empty send would fail if the receiver has already read everything and closed the socket
        connection.sendall(body)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Waits for one message. The caller must close its descriptors. Raises EOFError if the other side is gone."""
    size, count = _HEAD.unpack(_exactly(connection, _HEAD.size))
    descriptors: list[int] = []
    try:
        while len(descriptors) < count:
            byte, some, _, _ = socket.recv_fds(connection, 1, _AT_ONCE)
            if not byte or not some:
                raise EOFError
            descriptors += some
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return _exactly(connection, size), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = connection.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return bytes(data)
