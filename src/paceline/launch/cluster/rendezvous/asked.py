"""A rendezvous, as it was typed on a host."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import UsageError
from paceline.launch.cluster.rendezvous.secret import Keys


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A rendezvous as typed. `node` is this host's number, if it was given; `workers` the total, if it was given;
    `own` the number of workers of this host, if not. `same` must be the same on all hosts."""

    host: str
    port: int
    nodes: int
    keys: Keys
    node: int | None = None
    workers: int | None = None
    own: int = 1
    same: Mapping[str, str] = field(default_factory=dict)
    wait: float = 600.0
    name: str = field(default_factory=socket.gethostname)

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


def parse_place(typed: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`."""
    host, _, port = typed.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or ":" in host:
        raise UsageError(
            f"--rendezvous {typed} is not a host and a port.",
            advice="Type the name or IPv4 address of one of the hosts, and a free port there: --rendezvous a:29500",
        )
    return host, int(port)
