"""Creates Gloo process groups, with the settings that all rooms share.

Gloo accepts any process that connects to its port as a worker. So after connecting, the accounts at the other end of
this process's TCP connections within the host are found in the kernel's tables.
"""

from __future__ import annotations

import datetime
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.distributed as dist

from paceline.errors import LaunchError

LOOPBACK = "127.0.0.1"
ON_ONE_HOST = "Leave out --backend gloo: the workers of one host then use shared memory that no other account can open."
BETWEEN_HOSTS = (
    "Choose a network that only your hosts are on (--interface NAME), keep other accounts off these hosts, or type "
    "--elastic 1: the connections between the hosts of an elastic run are encrypted and refuse strangers."
)
# No time-out: the stall inspector decides when a wait is too long, because it has the stacks of both sides.
FOREVER = datetime.timedelta(days=30)


def gloo_group(store: Any, rank: int, world: int, *, address: str | None = LOOPBACK) -> Any:
    """Every worker of the group calls it; waits for all. `address` is the address at which the other workers reach this
    host; None means the address that the host name resolves to."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = FOREVER
    if address is None:
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
    else:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    before = own_sockets()
    group = dist.ProcessGroupGloo(store, rank, world, options)
    for account in strangers(before):
        raise LaunchError(
            f"Another account of this host (uid {account}) has spoken to a port of Gloo, which takes whoever connects "
            "first for a worker.",
            advice=ON_ONE_HOST if address == LOOPBACK else BETWEEN_HOSTS,
        )
    return group


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
