"""Messages over a Unix socket, with descriptors: a length, the number of descriptors, the descriptors, the body.

Both ends of such a socket are processes of one run. Bodies are msgspec's: what is read is data, never code.
"""

from __future__ import annotations

import os
import socket
import struct

_HEAD = struct.Struct("!II")  # bytes of the body, descriptors
_AT_ONCE = 250  # descriptors: the kernel takes 253 with one message


def send(connection: socket.socket, body: bytes, descriptors: list[int] | None = None) -> None:
    """Sends one message. The descriptors stay open here."""
    descriptors = descriptors or []
    connection.sendall(_HEAD.pack(len(body), len(descriptors)))
    for at in range(0, len(descriptors), _AT_ONCE):
        socket.send_fds(connection, [b"\0"], descriptors[at : at + _AT_ONCE])
    if body:  # to send nothing would still fail where the other side has read all and gone
        connection.sendall(body)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Waits for one message. Its descriptors are the caller's to close. EOFError when the other side is gone."""
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
