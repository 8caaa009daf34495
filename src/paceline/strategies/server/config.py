"""What the servers of a run are told when they start."""

from __future__ import annotations

import msgspec

from paceline.strategies.server.stale.correction import Kind
from paceline.wire.channel import Keys

FREE = float("inf")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sent to the supervisor as JSON, through an inherited pipe: it holds the servers' secret key."""

    keys: Keys
    folder: str  # for sockets and shards: private, and on this host
    record: str = ""  # the run's record, for logs and reports; empty: logs go to standard error
    servers: int = 1
    staleness: float | None = None  # steps that a worker may be ahead of the slowest; None: any number; 0: synchronous
    workers: int = 1  # that start; more may join
    backup: int = 0  # workers that a synchronous round need not wait for
    correction: Kind = "none"  # of stale gradients
    write_every: float = 30.0  # seconds between two writes of a shard
    silence: float = 30.0  # seconds without a heartbeat after which a worker counts as gone
    patience: float = 120.0  # seconds in which the workers that start must have joined
    rejoin: float = 10.0  # … and rejoined, after a restart of the server
    threads: int = 1  # of each server
    last_write: bool = True  # write the shard once more when the servers are told to end
    network: str = ""  # an address of this host that workers on other hosts reach; empty: this host only

    @property
    def bound(self) -> float:
        return FREE if self.staleness is None else self.staleness


class Started(msgspec.Struct, frozen=True):
    """A server has started, or started again. One line of JSON from the supervisor."""

    server: int
    process: int
    addresses: tuple[str, ...]  # for workers on this host first
    host: str


class Stopped(msgspec.Struct, frozen=True):
    """A server cannot be started."""

    server: int
    reason: str
