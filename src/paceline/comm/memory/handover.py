"""Hands the descriptor of rank 0's shared memory to the other workers of the host.

Under Paceline's launcher the descriptor goes through the link that each worker has inherited. The store of another
launcher (torchrun) accepts writes from anyone who reaches its port, so its content is not trusted: the store only holds
the address of a Unix socket, and the kernel reports the account at the other end of the socket. Both sides refuse any
account but their own.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import Any

import msgspec

from paceline.errors import LaunchError, PeerLostError
from paceline.wire import frames
from paceline.wire.link import LinkStore

_CREDENTIALS = struct.Struct("iII")  # process id, user id, group id
_DEFAULT_TIMEOUT = 300.0  # seconds for all workers of a group to connect
_reported: set[int] = set()  # refused accounts that have been reported: each is reported once


class Handed:
    """The result for one worker: the descriptor of the memory, and a process descriptor (pidfd) of each peer."""

    def __init__(self, memory: int, processes: dict[int, int]) -> None:
        self.memory, self.processes = memory, processes


def hand_over(store: Any, rank: int, world: int, memory: int | None, *, timeout: float | None = None) -> Handed:
    """Every worker of the group calls it, rank 0 with the descriptor of the memory; waits for all. The caller must
    close the returned descriptors. Raises LaunchError if another account poses as rank 0."""
    if isinstance(store, LinkStore):
        return _through_link(store, rank, world, memory)
    if memory is not None:
        return _serve_descriptors(store, world, memory, timeout or _DEFAULT_TIMEOUT)
    return _receive_descriptors(store, rank, timeout or _DEFAULT_TIMEOUT)


def forget(store: Any, world: int) -> None:
    """Deletes the keys of the handover. Rank 0 calls it after all workers have connected, so that a later group can use
    the same store."""
    keys = [f"process{peer}" for peer in range(world)] if isinstance(store, LinkStore) else []
    for key in ("memory", *keys):
        store.delete_key(key)


def _through_link(store: LinkStore, rank: int, world: int, memory: int | None) -> Handed:
    own = os.pidfd_open(os.getpid())
    store.give(f"process{rank}", own)
    os.close(own)
    if memory is not None:
        store.give("memory", memory)
    else:
        memory = store.take("memory")
    return Handed(memory, {peer: store.take(f"process{peer}") for peer in range(world) if peer != rank})


class _Hello(msgspec.Struct, frozen=True):
    """A worker's first message; it carries a descriptor of the worker's process."""

    rank: int


def _serve_descriptors(store: Any, world: int, memory: int, timeout: float) -> Handed:
    """Rank 0's side: waits for the other ranks and sends all descriptors to each."""
    until = time.monotonic() + timeout
    processes = {0: os.pidfd_open(os.getpid())}
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("")  # an abstract address chosen by the kernel: no file is created
        listening.listen(world + 64)
        store.set("memory", listening.getsockname().hex())
        try:
            while len(processes) < world:
                listening.settimeout(max(0.01, until - time.monotonic()))
                peer = listening.accept()[0]
                if _is_own(peer):
                    peer.settimeout(max(0.01, until - time.monotonic()))
                    body, (process,) = frames.receive(peer)
                    rank = msgspec.msgpack.decode(body, type=_Hello).rank
                    processes[rank], peers[rank] = process, peer
                else:
                    peer.close()
            for peer in peers.values():
                process_fds = [processes[rank] for rank in range(world)]
                frames.send(peer, b"", [memory, *process_fds])
        except (OSError, EOFError, KeyError) as error:
            missing = ", ".join(str(rank) for rank in range(world) if rank not in processes)
            raise PeerLostError(
                f"Worker {missing or 'of this group'} did not connect to the shared memory of worker 0: {error}."
            ) from error
        finally:
            for peer in peers.values():
                peer.close()
    os.close(processes.pop(0))
    return Handed(memory, processes)


def _receive_descriptors(store: Any, rank: int, timeout: float) -> Handed:
    """The side of every rank but 0."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
        first.settimeout(timeout)
        try:
            first.connect(bytes.fromhex(store.get("memory").decode("ascii", "replace")))
            if not _is_own(first):
                raise LaunchError(
                    f"Worker {rank} refused the shared memory of another account ({_account(first)}), which poses as "
                    "worker 0.",
                    advice="Another account writes to the store of this run. Check who is logged in to this host.",
                )
            own = os.pidfd_open(os.getpid())
            frames.send(first, msgspec.msgpack.encode(_Hello(rank)), [own])
            os.close(own)
            _, (memory, *process_fds) = frames.receive(first)
        except (OSError, EOFError, ValueError) as error:
            raise PeerLostError(f"Worker 0 has ended before its memory was shared: {error}.") from error
    os.close(process_fds[rank])
    return Handed(memory, {peer: process for peer, process in enumerate(process_fds) if peer != rank})


def _is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end belongs to this account. Each other account is reported once, on standard
    error."""
    user = _user(peer)
    if user == os.geteuid():
        return True
    if user not in _reported:
        _reported.add(user)
        print(f"paceline: refused a connection from another account ({_account(peer)}).", file=sys.stderr)
    return False


def _user(peer: socket.socket) -> int:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def _account(peer: socket.socket) -> str:
    return f"uid {_user(peer)}"
