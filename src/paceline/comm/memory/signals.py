"""Signals between processes: POSIX semaphores that lie in shared memory.

A semaphore orders memory (what was written before `post` is seen after `take`), which a flag that Python polls does not
on every processor; and its wait sleeps in the kernel. Calls that cannot block keep the interpreter's lock, since giving
it away costs more than they do.
"""

from __future__ import annotations

import ctypes
import errno
import time
from collections.abc import Callable

SIZE = 64  # bytes: a cache line each, so that two never disturb one another
CLOCK_MONOTONIC = 1
LOOK_UP = 0.25  # seconds asleep before looking whether the peer is still there

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
    """A semaphore at zero, at this address of shared memory. By one process, before the others use it."""
    _init(address, 1, 0)


post: Callable[[int], int] = _post


def take(address: int, spin: int, look: Callable[[], None]) -> None:
    """Waits for a post and takes it: turns round `spin` times, then sleeps. `look` is called now and then meanwhile: it
    raises where waiting has become pointless."""
    for _ in range(spin):
        if not _try(address):
            return
    while not sleep(address, LOOK_UP):
        look()


def sleep(address: int, seconds: float) -> bool:
    """Waits for a post so long at most, and takes it; says whether there was one."""
    wake = time.monotonic() + seconds
    until = _Time(int(wake), int(wake % 1.0 * 1e9))
    while _sleep(address, CLOCK_MONOTONIC, until):
        if ctypes.get_errno() == errno.ETIMEDOUT:
            return False
    return True


def is_posted(address: int) -> bool:
    """Takes a post if there is one."""
    return not _try(address)


def count(address: int) -> int:
    """How many posts there are to take."""
    found = ctypes.c_int()
    _value(address, ctypes.addressof(found))
    return found.value
