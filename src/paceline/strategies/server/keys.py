"""The CURVE keys of a run: a pair for its servers, and a pair for its workers.

A worker is sure of its server by the servers' public key, and a server of its workers by the workers' public key. Both
are made for one run, and reach its processes through inherited descriptors only.
"""

from __future__ import annotations

import msgspec
import zmq

from paceline.wire.channel import guard, trust


class ServerKeys(msgspec.Struct, frozen=True):
    """What a server holds."""

    public: str
    secret: str
    workers: str  # the workers' public key: all others are refused


class WorkerKeys(msgspec.Struct, frozen=True):
    """What a worker holds."""

    public: str
    secret: str
    server: str  # the servers' public key


def make_keys() -> tuple[ServerKeys, WorkerKeys]:
    """New keys for a run."""
    (public, secret), (its, its_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    servers = ServerKeys(public.decode(), secret.decode(), its.decode())
    return servers, WorkerKeys(its.decode(), its_secret.decode(), public.decode())


def admit_workers(listening: zmq.Socket[bytes], keys: ServerKeys) -> None:
    """Makes a socket accept only peers that prove a key (which `Gate` then compares)."""
    guard(listening, keys.secret.encode())
    listening.setsockopt(zmq.ZAP_DOMAIN, b"paceline")


def prove(connecting: zmq.Socket[bytes], keys: WorkerKeys) -> None:
    """Makes a socket speak only with a server of the run, and prove that it is a worker."""
    trust(connecting, keys.server, (keys.public.encode(), keys.secret.encode()))
