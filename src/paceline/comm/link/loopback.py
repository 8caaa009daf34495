"""Which account is at the other end of this process's connections within the host: the kernel's table says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

ESTABLISHED = "01"


class _Row(NamedTuple):
    local: str
    remote: str
    state: str
    account: int
    inode: int


def own_sockets() -> set[int]:
    """The inodes of the sockets that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def strangers(before: set[int]) -> list[int]:
    """The accounts other than this one at the other end of connections that were made since `before`. A connection to
    another host has its other end in another table, and is not looked at."""
    rows = list(_table())
    ends = {(row.local, row.remote): row.account for row in rows}
    made = own_sockets() - before
    accounts = [ends.get((row.remote, row.local)) for row in rows if row.inode in made and row.state == ESTABLISHED]
    return sorted({account for account in accounts if account is not None and account != os.geteuid()})


def _table() -> Iterator[_Row]:
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for line in lines:
            fields = line.split()
            yield _Row(fields[1], fields[2], fields[3], int(fields[7]), int(fields[9]))
