"""Memory is handed to workers of this account, whatever another account writes into the store."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from paceline.comm.memory import handover
from paceline.comm.memory.handover import hand_over
from paceline.comm.memory.region import Region
from paceline.errors import LaunchError, PeerLostError


@pytest.fixture
def nobody() -> int:
    if os.geteuid() != 0:
        pytest.skip("to act as a second account takes root")
    return pwd.getpwnam("nobody").pw_uid


def as_account(account: int, act: Callable[[], None]) -> int:
    """Forks a process of that account that does this, and then waits to be killed."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(account)
            os.setuid(account)
            act()
            os.write(tell, b"x")
            threading.Event().wait()
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    return child


def ended(child: int) -> None:
    os.kill(child, 9)
    os.waitpid(child, 0)


def test_both_ends_hold_the_same_memory_and_each_others_process() -> None:
    store, found = dist.HashStore(), dict[int, Any]()
    region = Region(100)

    def worker(rank: int) -> None:
        found[rank] = hand_over(store, rank, 2, region.fd if rank == 0 else None)

    threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other = Region(100, fd=found[1].memory)
    other.bytes[3] = 7
    assert region.bytes[3] == 7
    assert [list(handed.processes) for _, handed in sorted(found.items())] == [[1], [0]]
    for handed in found.values():
        for descriptor in handed.processes.values():
            os.close(descriptor)


def test_memory_that_another_account_offers_is_refused(nobody: int, capfd: pytest.CaptureFixture[str]) -> None:
    handover._reported.clear()
    offer = socket.socket(socket.AF_UNIX)

    def play_rank_0() -> None:
        offer.bind("\0paceline-test-" + str(os.getpid()))
        offer.listen()
        os.write(address[1], offer.getsockname().hex().encode())

    address = os.pipe()
    child = as_account(nobody, play_rank_0)
    try:
        store = dist.HashStore()
        for _ in range(2):
            store.set("memory", os.read(address[0], 1000) if not store.num_keys() else store.get("memory"))
            with pytest.raises(LaunchError, match=rf"refused .*uid {nobody}"):
                hand_over(store, 1, 2, None, timeout=20)
    finally:
        ended(child)
        offer.close()
    assert capfd.readouterr().err.count("refused a connection") == 1, "reported once"


def test_another_account_that_comes_for_the_memory_gets_none(nobody: int) -> None:
    store, region, found = dist.HashStore(), Region(100), dict[int, Any]()
    first = threading.Thread(target=lambda: found.update({0: hand_over(store, 0, 2, region.fd)}))
    first.start()
    address = bytes.fromhex(store.get("memory").decode())
    closed = os.pipe()

    def come() -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(address)
            os.write(closed[1], peer.recv(100) or b"nothing")

    child = as_account(nobody, come)
    ended(child)
    assert os.read(closed[0], 100) == b"nothing"
    handed = hand_over(store, 1, 2, None)
    first.join()
    for descriptor in (handed.memory, *handed.processes.values(), *found[0].processes.values()):
        os.close(descriptor)


@pytest.mark.parametrize("text", ["", "not hex", "00ff", "12 34"])
def test_nonsense_in_the_store_is_a_lost_peer(text: str) -> None:
    store = dist.HashStore()
    store.set("memory", text)
    with pytest.raises(PeerLostError):
        hand_over(store, 1, 2, None, timeout=1)
