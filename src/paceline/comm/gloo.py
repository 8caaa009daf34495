"""Gloo's process groups, as everybody here makes them."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

from paceline.comm.link import loopback
from paceline.errors import LaunchError

LOOPBACK = "127.0.0.1"
# The stall inspector decides when waiting is too long, with both sides' stacks in hand; a time-out knows neither.
FOREVER = datetime.timedelta(days=30)


def gloo_group(store: Any, rank: int, world: int, *, address: str | None = LOOPBACK) -> Any:
    """Every worker of the group makes one; waits for all. `address` is where the others reach this worker's host; None:
    what the host's name resolves to."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = FOREVER
    if address is None:
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
    else:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    before = loopback.own_sockets()
    group = dist.ProcessGroupGloo(store, rank, world, options)
    # Whoever reaches Gloo's port first is taken for a worker. On one host the kernel tells whose connection it is.
    for account in loopback.strangers(before):
        raise LaunchError(
            f"Another account (uid {account}) has connected to Gloo in the place of a worker: refused.",
            advice="Leave out --backend gloo: the workers of one host then meet in memory that only they can reach.",
        )
    return group
