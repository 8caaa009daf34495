"""Finds the accounts at the other end of this process's TCP connections within the host, from the kernel's tables."""

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
            continue  # the descriptor was closed in the meantime
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def strangers(before: set[int]) -> list[int]:
    """The other accounts (uids) at the far end of connections made since `before`, a result of `own_sockets()`.
    Connections to other hosts are ignored: this kernel does not know the account at their far end."""
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
            continue  # the kernel has no IPv6
        for line in lines:
            fields = line.split()
            yield _Row(fields[1], fields[2], fields[3], int(fields[7]), int(fields[9]))
