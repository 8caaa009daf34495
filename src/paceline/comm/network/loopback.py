"""Finds the accounts at the other end of this process's TCP connections within the host, from the kernel's tables."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import NamedTuple

ESTABLISHED, _LISTENING = "01", "0A"
_BYTES_RECEIVED = 128  # where the kernel's tcp_info has them


class _Row(NamedTuple):
    local: str
    remote: str
    state: str
    account: int
    inode: int


def own_sockets() -> set[int]:
    """The inodes of the sockets that this process has open."""
    return set(_own_sockets())


def strangers(before: set[int]) -> list[int]:
    """The other accounts (uids) at the far end of connections made since `before`, a result of `own_sockets()`.
    Connections to other hosts are ignored: this kernel does not know the account at their far end. So are those that
    this process has accepted and that have sent nothing: nobody takes their far end for a worker."""
    rows, own = list(_table()), _own_sockets()
    ends = {(row.local, row.remote): row.account for row in rows}
    listening = {row.local for row in rows if row.inode in own and row.state == _LISTENING}
    made = [row for row in rows if row.inode in own.keys() - before and row.state == ESTABLISHED]
    accounts = {
        ends.get((row.remote, row.local)) for row in made if row.local not in listening or _has_received(own[row.inode])
    }
    return sorted(account for account in accounts if account is not None and account != os.geteuid())


def _own_sockets() -> dict[int, int]:
    """The descriptors of this process's sockets, by inode."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor was closed in the meantime
        if target.startswith("socket:["):
            found[int(target[8:-1])] = int(name)
    return found


def _has_received(descriptor: int) -> bool:
    """Whether something has come over this connection."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return True  # it was closed in the meantime
    end = _BYTES_RECEIVED + 8
    return len(info) < end or bool(int.from_bytes(info[_BYTES_RECEIVED:end], sys.byteorder))


def _table() -> Iterator[_Row]:
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue  # the kernel has no IPv6
        for line in lines:
            fields = line.split()
            yield _Row(fields[1], fields[2], fields[3], int(fields[7]), int(fields[9]))
