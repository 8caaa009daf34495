"""Signals: posts are counted, waiting sleeps, and whoever waits looks up now and then."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import pytest

from paceline.comm.memory import shm_rendezvous
from paceline.comm.memory.region import Region


class Signal:
    def __init__(self) -> None:
        self.region = Region(shm_rendezvous.LINE)
        self.address = self.region.address
        shm_rendezvous.make(self.address)


@pytest.fixture
def signal() -> Signal:
    return Signal()


def test_posts_are_counted_and_each_is_taken_once(signal: Signal) -> None:
    for _ in range(3):
        shm_rendezvous.post(signal.address)
    assert shm_rendezvous.count(signal.address) == 3
    taken = [shm_rendezvous.is_posted(signal.address) for _ in range(5)]
    assert taken == [True, True, True, False, False]
    assert shm_rendezvous.count(signal.address) == 0


def test_sleep_ends_in_time_without_a_post(signal: Signal) -> None:
    began = time.monotonic()
    assert not shm_rendezvous.sleep(signal.address, 0.1)
    assert 0.1 <= time.monotonic() - began < 30.0
    assert not shm_rendezvous.sleep(signal.address, 0.0)


def test_sleep_takes_a_post(signal: Signal) -> None:
    shm_rendezvous.post(signal.address)
    assert shm_rendezvous.sleep(signal.address, 60.0)
    assert shm_rendezvous.count(signal.address) == 0


@pytest.mark.parametrize("spin", [0, 100])
def test_a_post_of_another_thread_wakes(signal: Signal, spin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_rendezvous, "LOOK_UP", 60.0)  # as long as a busy machine may take to run the other thread
    looks: list[None] = []
    timer = threading.Timer(0.05, shm_rendezvous.post, (signal.address,))
    timer.start()
    began = time.monotonic()
    shm_rendezvous.take(signal.address, spin, lambda: looks.append(None))
    assert time.monotonic() - began < 60.0
    assert looks == []  # woken before the first look
    timer.join()


def test_who_waits_looks_up_and_may_give_up(signal: Signal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_rendezvous, "LOOK_UP", 0.01)
    looks = iter(range(3))

    def look() -> None:
        if next(looks) == 2:
            raise LookupError("pointless")

    with pytest.raises(LookupError, match="pointless"):
        shm_rendezvous.take(signal.address, 10, look)


def test_waiting_costs_no_time_of_the_processor(signal: Signal) -> None:
    began = time.process_time()
    assert not shm_rendezvous.sleep(signal.address, 0.5)
    assert time.process_time() - began < 0.25


def test_other_threads_run_while_one_sleeps(signal: Signal) -> None:
    waiting = threading.Thread(target=shm_rendezvous.take, args=(signal.address, 0, lambda: None))
    waiting.start()
    shm_rendezvous.post(signal.address)  # would never come if the sleeper kept the interpreter to itself
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_post_crosses_processes_and_shows_what_was_written_before() -> None:
    there, back = Signal(), Region(64)
    shm_rendezvous.make(back.address)
    number = ctypes.c_long.from_address(there.address + 32)
    child = os.fork()
    if child == 0:
        for round_ in range(200):
            shm_rendezvous.take(there.address, 10, lambda: None)
            if number.value != round_:
                os._exit(1)
            shm_rendezvous.post(back.address)
        os._exit(0)
    for round_ in range(200):
        number.value = round_
        shm_rendezvous.post(there.address)
        assert shm_rendezvous.sleep(back.address, 60.0), f"no answer in round {round_}"
    assert os.waitpid(child, 0)[1] == 0
