"""Creates Gloo process groups, with the settings that all rooms share."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

from paceline.comm.network import loopback
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
    before = loopback.own_sockets()
    group = dist.ProcessGroupGloo(store, rank, world, options)
    # Gloo accepts any process that connects to its port as a worker. For connections within one host the kernel's
    # socket table names the account of the peer.
    for account in loopback.strangers(before):
        raise LaunchError(
            f"Another account of this host (uid {account}) has spoken to a port of Gloo, which takes whoever connects "
            "first for a worker.",
            advice=ON_ONE_HOST if address == LOOPBACK else BETWEEN_HOSTS,
        )
    return group
