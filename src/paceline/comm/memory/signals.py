"""Signals between processes: POSIX semaphores in shared memory.

A semaphore orders memory accesses (data written before `post` is visible after `take`); a flag that Python polls does
not do so on every processor. A wait for a semaphore sleeps in the kernel. Calls that cannot block keep the GIL, because
releasing it would cost more than the call.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable

SIZE = 64  # bytes: one cache line per semaphore avoids false sharing
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
