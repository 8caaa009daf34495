"""How the workers of one host get at the memory that rank 0 has made: its descriptor is handed to each of them.

Under our own launcher it goes through the link that each worker has inherited. In another launcher's store (torchrun's)
anybody who reaches its port may write, so nothing in it is believed: what is found there is the address of a socket,
and the kernel says which account is at its other end. Both sides refuse any account but their own.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import Any

import msgspec

from paceline.comm.link import frames
from paceline.comm.link.client import LinkStore
from paceline.errors import LaunchError, PeerLostError

_CREDENTIALS = struct.Struct("iII")  # process, user, group
_PATIENCE = 300.0  # seconds for all workers of a group to come, where nothing else is said
_reported: set[int] = set()  # accounts that were refused: each is reported once


class Handed:
    """What each worker holds afterwards: the memory, and a descriptor of each other worker's process."""

    def __init__(self, memory: int, processes: dict[int, int]) -> None:
        self.memory, self.processes = memory, processes


def hand_over(store: Any, rank: int, world: int, memory: int | None, *, timeout: float | None = None) -> Handed:
    """Every worker of the group calls it, rank 0 with the descriptor of the memory; waits for all. The descriptors that
    come back are the caller's to close. LaunchError where another account plays one of the workers."""
    if isinstance(store, LinkStore):
        return _through_link(store, rank, world, memory)
    if memory is not None:
        return _to_all(store, world, memory, timeout or _PATIENCE)
    return _from_first(store, rank, timeout or _PATIENCE)


def forget(store: Any, world: int) -> None:
    """Called by rank 0 when all have what they need: a later group may meet in the same store."""
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
    """A worker's first message, with a descriptor of its process."""

    rank: int


def _to_all(store: Any, world: int, memory: int, timeout: float) -> Handed:
    """Rank 0: waits for the others, and gives each all descriptors."""
    until = time.monotonic() + timeout
    processes = {0: os.pidfd_open(os.getpid())}
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind("")  # the kernel chooses a name, which no file system holds
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
                everybody = [processes[rank] for rank in range(world)]
                frames.send(peer, b"", [memory, *everybody])
        except (OSError, EOFError, KeyError) as error:
            missing = ", ".join(str(rank) for rank in range(world) if rank not in processes)
            raise PeerLostError(
                f"Worker {missing or 'of this group'} did not come for the shared memory: {error}."
            ) from error
        finally:
            for peer in peers.values():
                peer.close()
    os.close(processes.pop(0))
    return Handed(memory, processes)


def _from_first(store: Any, rank: int, timeout: float) -> Handed:
    """Any other rank."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
        first.settimeout(timeout)
        try:
            first.connect(bytes.fromhex(store.get("memory").decode("ascii", "replace")))
            if not _is_own(first):
                raise LaunchError(
                    f"Another account ({_account(first)}) offers worker {rank} memory in worker 0's place: refused.",
                    advice="Somebody writes to the store of this run. Look who else is logged in to this host.",
                )
            own = os.pidfd_open(os.getpid())
            frames.send(first, msgspec.msgpack.encode(_Hello(rank)), [own])
            os.close(own)
            _, (memory, *everybody) = frames.receive(first)
        except (OSError, EOFError, ValueError) as error:
            raise PeerLostError(f"Worker 0 has ended before its memory was shared: {error}.") from error
    os.close(everybody[rank])
    return Handed(memory, {peer: process for peer, process in enumerate(everybody) if peer != rank})


def _is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end belongs to this account; one that does not is reported once."""
    user = _user(peer)
    if user == os.geteuid():
        return True
    if user not in _reported:
        _reported.add(user)
        print(f"paceline: refused a connection of another account ({_account(peer)}).", file=sys.stderr)
    return False


def _user(peer: socket.socket) -> int:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def _account(peer: socket.socket) -> str:
    return f"uid {_user(peer)}"
