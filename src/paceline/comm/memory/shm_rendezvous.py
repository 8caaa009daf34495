"""Rendezvous of the workers of one host: shared memory, a semaphore per ordered pair, and each worker's current call.

A worker writes the description of its call to shared memory before the first signal, so that the first wait shows
whether the peer made the same call. A mismatch raises on all workers, naming the script line of each.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.comm.call_site import script_line
from paceline.comm.ending import CalledOff, Regrouping
from paceline.comm.memory.handover import forget, hand_over
from paceline.comm.memory.region import Peers, Region
from paceline.errors import PacelineError, PartedError, PeerLostError

SPIN = 300  # polls before sleeping: about 100 µs
LINE = 64  # bytes of a cache line
TEXT = 1024  # bytes for a worker's description of its call
CALL = struct.Struct("<qqqqq")  # number, CRC of name and dtype, size, root, CRC of uneven parts
COUNT = struct.Struct("<q")
CALLED_OFF = "called off"
OFF = zlib.crc32(f"{CALLED_OFF} {torch.uint8}".encode())
HEAR_OUT = 5.0  # seconds in which diverged workers wait for the descriptions of their peers' calls
ELASTIC_LOOK = 0.02  # seconds between two checks that the peer still lives, where the others go on without it


class _Done(Exception):
    """A peer that is gone had written all that this wait is for."""


class Meeting:
    """A group of workers in shared memory. A collective is one `call`, then `signal` and `wait` for each peer, as often
    as the collective needs; all workers use the same order."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world: int,
        space: int,
        *,
        names: list[int] | None = None,
        timeout: float | None = None,
        elastic: bool = False,
    ) -> None:
        """Every worker of the group calls it; waits for all. `names` are the worker numbers shown in messages. Without
        a `timeout` (seconds) there is no limit to the wait for a live peer. `elastic`: of a peer that is gone all that
        it has signalled still counts, on every worker alike, and the first wait for more raises `Regrouping`."""
        self.rank, self.world = rank, world
        self.site: Callable[[], str] = script_line  # returns the script line of the current call
        self.names, self._timeout = names or list(range(world)), timeout
        # If workers share cores, polling takes the core from the worker that must signal.
        self.spin = SPIN if world <= (os.cpu_count() or 1) else 0
        self._codes: dict[tuple[str, torch.dtype], int] = {}
        self._number, self._call = 0, b""
        self.said = ""  # name of the current call, for messages
        self._unchecked = [False] * world  # peers whose call has not been compared with the current call
        self._signals, self._taken, self._elastic = 0, [0] * world, elastic
        self._since, self._awaited = 0.0, 0
        self._broken: PacelineError | None = None
        self._set_up(store, space)

    def _set_up(self, store: Any, space: int) -> None:
        # Per worker: a semaphore for each peer, two calls, the number of its signals, a text.
        block = LINE * (self.world + 3) + TEXT
        size = block * self.world + space
        if self.rank == 0:
            self._region = Region(size)
            for peer in range(self.world):
                for other in range(self.world):
                    make(self._region.address + block * peer + LINE * other)
            handed = hand_over(store, 0, self.world, self._region.fd, timeout=self._timeout)
        else:
            handed = hand_over(store, self.rank, self.world, None, timeout=self._timeout)
            self._region = Region(size, fd=handed.memory)
        with torch.inference_mode(False):
            self.space = self._region.bytes[block * self.world :][:space]
        base, ranks = self._region.address, range(self.world)
        self._posts = [base + block * peer + LINE * self.rank for peer in ranks if peer != self.rank]
        self._waits = [base + block * self.rank + LINE * peer for peer in ranks]
        self._calls = [block * peer + LINE * self.world for peer in ranks]
        self._counts = [at + 2 * LINE for at in self._calls]
        self._texts = [at + 3 * LINE for at in self._calls]
        self._peers = Peers(handed.processes)
        self.meet()
        self._region.close_door()
        if self.rank == 0:
            forget(store, self.world)
        self.meet()

    def meet(self, name: str = "meeting") -> None:
        """Waits until every worker has called it."""
        self.call(name, torch.uint8, 0)
        self.signal()
        for peer in range(self.world):
            if peer != self.rank:
                self.wait(peer)
        self._unchecked = [False] * self.world

    def gone(self) -> list[int]:
        """The ranks whose process has ended."""
        return self._peers.gone()

    def call(self, name: str, dtype: torch.dtype, size: int, root: int = 0, parts: Sequence[int] = ()) -> None:
        """Begins a collective. All workers must begin the same collective, with the same dtype, size and parts, and
        must then signal: without a signal the next call could overwrite this description before all peers have read
        it."""
        if self._broken is not None:
            raise self._broken
        code = self._codes.get((name, dtype))
        if code is None:
            code = self._codes[name, dtype] = zlib.crc32(f"{name} {dtype}".encode())
        self._number += 1
        uneven = zlib.crc32(str(parts).encode()) if parts and min(parts) != max(parts) else 0
        self._call, self.said = CALL.pack(self._number, code, size, root, uneven), name
        self._kind = (name, dtype, size, root, list(parts) if uneven else None)
        at = self._calls[self.rank] + LINE * (self._number & 1)
        self._region.memory[at : at + CALL.size] = self._call
        self._unchecked = [True] * self.world

    def signal(self) -> None:
        """Tells all peers that the data written so far may be read."""
        self._signals += 1
        if self._elastic:  # a worker may be killed after it has told some of its peers
            COUNT.pack_into(self._region.memory, self._counts[self.rank], self._signals)
        for address in self._posts:
            post(address)

    def wait(self, peer: int) -> None:
        """Waits for a signal from `peer`. The first wait of a call also compares the calls."""
        address = self._waits[peer]
        if not is_posted(address):
            self._since, self._awaited = time.monotonic(), peer
            if self._elastic:
                try:
                    take(address, self.spin, self._check_awaited, ELASTIC_LOOK)
                except _Done:
                    pass
            else:
                take(address, self.spin, self._check_peers)
        self._taken[peer] += 1
        if self._unchecked[peer]:
            self._unchecked[peer] = False
            at = self._calls[peer] + LINE * (self._number & 1)
            if self._region.memory[at : at + CALL.size] != self._call:
                self._differ(peer)

    def _differ(self, peer: int) -> None:
        """A peer made a different call: a worker has failed and calls the work off, or the workers have diverged."""
        until, remaining = time.monotonic() + HEAR_OUT, [p for p in range(self.world) if p != self.rank]
        while not self._is_off(peer):
            remaining = [p for p in remaining if self._unchecked[p]]
            if not remaining or not sleep(self._waits[remaining[0]], max(0.0, until - time.monotonic())):
                self._report_divergence()
            peer = remaining[0]
            self._taken[peer] += 1
            self._unchecked[peer] = False
        self._take_first_signals()
        raise CalledOff

    def _is_off(self, peer: int) -> bool:
        at = self._calls[peer] + LINE * (self._number & 1)
        return CALL.unpack(self._region.memory[at : at + CALL.size])[:2] == (self._number, OFF)

    def call_off(self) -> None:
        """Called by a worker that failed in joint work. Answers the next call of the peers, which then raise
        `CalledOff`. Waits for all peers; the data of that call is lost."""
        self.call(CALLED_OFF, torch.uint8, 0)
        self.signal()
        self._take_first_signals()

    def _take_first_signals(self) -> None:
        """Takes the first signal of each remaining peer: a call that was called off ends with its first signals."""
        for peer in range(self.world):
            if peer != self.rank and self._unchecked[peer]:
                self._unchecked[peer] = False
                self.wait(peer)

    def _check_awaited(self) -> None:
        """In an elastic run: raises if the peer that is waited for is gone. Who waits for another one waits on: that
        one gives the same signals as this worker, up to the first that the lost worker did not give."""
        peer = self._awaited
        if peer in self._peers.gone() and not count(self._waits[peer]):
            (given,) = COUNT.unpack_from(self._region.memory, self._counts[peer])
            raise _Done if given > self._taken[peer] else Regrouping

    def _check_peers(self) -> None:
        """Raises if waiting is pointless: a peer has ended without its signal, or the timeout has passed."""
        for peer in self._peers.gone():
            if self._taken[peer] < self._signals and not count(self._waits[peer]):
                self._broken = PeerLostError(
                    f"Worker {self.names[peer]} has ended while worker {self.names[self.rank]} waits for it in "
                    f"{self.said} at {self.site()}."
                )
                raise self._broken
        if self._timeout is not None and time.monotonic() - self._since > self._timeout:
            self._broken = PeerLostError(
                f"Worker {self.names[self.rank]} has waited {self._timeout:.0f} s for worker "
                f"{self.names[self._awaited]} in {self.said} at {self.site()}."
            )
            raise self._broken

    def is_here(self, peer: int) -> bool:
        """Takes a signal from `peer` if there is one; does not wait."""
        if not is_posted(self._waits[peer]):
            return False
        self._taken[peer] += 1
        return True

    def _report_divergence(self) -> None:
        """Describes this worker's call and raises. All workers find the mismatch at their first wait."""
        name, dtype, size, root, parts = self._kind
        text = f"{name} of {size} {str(dtype).removeprefix('torch.')}" + (f" from {root}" if root else "")
        text += f" in parts of {', '.join(map(str, parts))}" if parts else ""
        self.part(f"{text} at {self.site()}")

    def part(self, text: str) -> None:
        """Every worker of a diverged group calls it. The workers exchange the descriptions of their calls, and each
        raises PartedError."""
        if self._broken is not None:
            raise self._broken
        raw = text.encode()[: TEXT - 1]
        at = self._texts[self.rank]
        self._region.memory[at : at + len(raw) + 1] = raw + b"\0"
        self.signal()
        until, said = time.monotonic() + HEAR_OUT, []
        for peer in range(self.world):
            if peer == self.rank:
                said.append((peer, text))
                continue
            heard = True
            while heard and self._taken[peer] < self._signals:
                heard = sleep(self._waits[peer], max(0.0, until - time.monotonic()))
                self._taken[peer] += heard
            at = self._texts[peer]
            words = bytes(self._region.memory[at : at + TEXT]).split(b"\0")[0].decode(errors="replace")
            said.append((peer, words if heard else "no answer"))
        self._broken = PartedError(
            "The workers entered different collectives: "
            + "; ".join(f"worker {self.names[p]}: {words}" for p, words in said),
            advice="Look for a branch of the script that depends on time, on unseeded randomness or on the process: "
            "all workers must make the same collectives in the same order, with the same size and dtype.",
        )
        raise self._broken


# -- signals between processes ----------------------------------------------------------------------------------------
# A semaphore orders memory accesses (data written before `post` is visible after `take`); a flag that Python polls does
# not do so on every processor. A wait for a semaphore sleeps in the kernel. Calls that cannot block keep the GIL,
# because releasing it would cost more than the call.


CLOCK_MONOTONIC = 1
LOOK_UP = 0.25  # seconds of sleep between two checks that the peer still lives

_quick, _slow = ctypes.PyDLL(None), ctypes.CDLL(None, use_errno=True)
_init, _post, _try, _value = _quick.sem_init, _quick.sem_post, _quick.sem_trywait, _quick.sem_getvalue
_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
_post.argtypes = _try.argtypes = (ctypes.c_void_p,)
_value.argtypes = (ctypes.c_void_p, ctypes.c_void_p)


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_sleep = _slow.sem_clockwait
_sleep.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Time))


def make(address: int) -> None:
    """Creates a semaphore with value 0 at this address of shared memory. One process calls it, before any use."""
    _init(address, 1, 0)


post: Callable[[int], int] = _post


def take(address: int, spin: int, look: Callable[[], None], every: float = LOOK_UP) -> None:
    """Waits for a post and takes it: polls `spin` times, then sleeps. Calls `look` `every` so many seconds; `look`
    raises if waiting has become pointless."""
    for _ in range(spin):
        if not _try(address):
            return
    while not sleep(address, every):
        look()


def sleep(address: int, seconds: float) -> bool:
    """Waits at most `seconds` for a post and takes it; returns whether there was a post."""
    wake = time.monotonic() + seconds
    until = _Time(int(wake), int(wake % 1.0 * 1e9))
    while _sleep(address, CLOCK_MONOTONIC, until):
        if ctypes.get_errno() == errno.ETIMEDOUT:
            return False
    return True


def is_posted(address: int) -> bool:
    """Takes a post if there is one; returns whether there was a post."""
    return not _try(address)


def count(address: int) -> int:
    """The number of posts that have not been taken."""
    found = ctypes.c_int()
    _value(address, ctypes.addressof(found))
    return found.value
