"""The store of a run, for a worker of any launcher."""

from __future__ import annotations

from typing import Any

from paceline.settings import WorkerSettings
from paceline.torch_private import TCPStore
from paceline.wire.link import LinkStore, link_of_this_process


def connect_store(settings: WorkerSettings) -> Any:
    """The key-value store through which the workers of a run find each other: the store of Paceline's launcher. Under
    another launcher it is torch's TCPStore, served by rank 0, unless that launcher's agent already serves the store."""
    link = link_of_this_process()
    if link is not None:
        return LinkStore(link)
    master = settings.rank == 0 and not settings.agent_store
    return TCPStore(
        settings.store_host, settings.store_port, is_master=master, wait_for_workers=False, multi_tenant=True
    )
