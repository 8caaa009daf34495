"""A worker's memory: how much it has taken at most, and a ceiling for it.

Running into the ceiling is a real error of torch's allocator, as on a machine that has no more. On a GPU it is a share
of the device's memory; where there is none, it is the data segment of the process (`RLIMIT_DATA`), above what a fresh
worker has. Memory that processes share does not count.
"""

from __future__ import annotations

import importlib
import resource
from pathlib import Path

import torch


def most_taken() -> int:
    """Bytes at the peak so far: of the device, where this process uses one. Does not wait for it."""
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else 0
    return on_gpu or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit(size: int) -> None:
    """This worker may take so many bytes from now on. Called by every worker, before its script."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / whole), 0)
        return
    # Every process's first optimizer imports this, and the zygote only before its second run: it is not the script's.
    importlib.import_module("torch._dynamo")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _data() + size
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling if hard == -1 else min(ceiling, hard), hard))


def lift() -> None:
    """Telling of an error takes memory, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _data() -> int:
    """Bytes of this process that count against RLIMIT_DATA."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
