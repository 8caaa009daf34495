"""A worker's memory: its peak use, a limit for it, and what the process keeps of memory that was freed.

Reaching the limit raises the same error of torch's allocator as a machine without more memory. On a GPU the limit is a
fraction of the device's memory. Without a GPU it is the data segment of the process (`RLIMIT_DATA`), above what a fresh
worker uses. Shared memory does not count.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
from pathlib import Path

import torch

_LIBC = ctypes.CDLL(None)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD = 32 << 20  # the most that glibc itself sets in a process that frees large blocks
_keeps = False  # whether `keep_freed` has taken effect


def most_taken() -> int:
    """Peak bytes so far: of the GPU if this process uses one, else of the process. Does not wait for the GPU."""
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    return on_gpu or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there is no more memory, on this worker and perhaps on no other."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def limit(size: int) -> None:
    """Limits this worker to `size` more bytes from now on. Every worker calls it before its script."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / whole), 0)
        return
    # Every process's first optimizer imports torch._dynamo, and a zygote only before its second run: the import must
    # not count as the script's memory.
    importlib.import_module("torch._dynamo")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _data() + size
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling if hard == -1 else min(ceiling, hard), hard))


def lift() -> None:
    """Lifts the limit so that an error can be reported: formatting a traceback takes memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def keep_freed(workers: int) -> None:
    """glibc returns freed memory to the system when a step's activations are freed, and the next step pays for every
    page again: about a fifth of the time of a small CNN's step, and more in some runs than in others. From now on the
    process keeps freed blocks below 32 MiB for its next step; all workers together up to 1 % of the host's memory, and
    each up to 1 GiB. Does nothing with another C library."""
    global _keeps
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is None:
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Setting either threshold switches off glibc's own adjustment of both.
    mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, min(memory // 100 // workers, 1 << 30))
    _keeps = True


def return_freed() -> None:
    """Returns to the system, once, what `keep_freed` has kept. For memory that a single event took and steps do not
    need: else the process would hold it to its end, on top of each step's peak."""
    if _keeps:
        _LIBC.malloc_trim(0)


def _data() -> int:
    """Bytes of this process that count against RLIMIT_DATA."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
