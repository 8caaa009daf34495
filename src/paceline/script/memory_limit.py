"""A worker's memory: its peak use, and a limit for it.

Reaching the limit raises the same error of torch's allocator as a machine without more memory. On a GPU the limit is a
fraction of the device's memory. Without a GPU it is the data segment of the process (`RLIMIT_DATA`), above what a fresh
worker uses. Shared memory does not count.
"""

from __future__ import annotations

import importlib
import resource
from pathlib import Path

import torch


def most_taken() -> int:
    """Peak bytes so far: of the GPU if this process uses one, else of the process. Does not wait for the GPU."""
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    return on_gpu or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


def _data() -> int:
    """Bytes of this process that count against RLIMIT_DATA."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
