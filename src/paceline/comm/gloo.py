"""Gloo's process groups, as everybody here makes them."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist

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
    return dist.ProcessGroupGloo(store, rank, world, options)
