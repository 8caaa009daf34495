"""Starts and stops Horovod in this process, and answers questions about it: rank, size, what is built in.

There is one controller a process, between `init` and `shutdown`.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from paceline.horovod.common.process_sets import ProcessSet, adopt, global_process_set
from paceline.horovod.engine import membership
from paceline.horovod.engine.controller import NOT_INITIALIZED, Controller, current, set_current, take_current
from paceline.settings import horovod_settings
from paceline.wire.link import connect_store, within

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "size",
    "start_timeline",
    "stop_timeline",
]

_inits = 0  # every rank calls init equally often: the number tells its connections from earlier ones


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connects this process with the other ranks; every rank calls it. Without a launcher there is one rank. Does
    nothing if Horovod is running.

    `comm`: a list of the ranks that take part. `process_sets`: sets that are made at once, or "dynamic"."""
    global _inits
    if (running := current()) is not None:
        if running.is_running:
            return
        shutdown()  # another rank has ended Horovod
    if comm is not None and not isinstance(comm, (list, tuple, range)):
        raise ValueError(
            "init: comm must be a list of ranks. Communicators of MPI cannot be used: there is no MPI here."
        )
    dynamic = isinstance(process_sets, str) and process_sets.lower() == "dynamic"
    if isinstance(process_sets, str) and not dynamic:
        raise ValueError(f'init: process_sets must be a list of ProcessSets or "dynamic", not {process_sets!r}.')
    asked = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
    _inits += 1
    if membership.is_elastic() and comm is None:
        controller = membership.connect(lambda left, generation: _connect(left, asked, f"{_inits}.{generation}"))
    else:
        controller = _connect(comm, asked, str(_inits))
    controller.start()
    set_current(controller, dynamic=dynamic)
    global_process_set.ranks = list(range(controller.member.size))
    for process_set in asked:
        adopt(process_set)


def _connect(ranks: Sequence[int] | None, asked: Sequence[ProcessSet], which: str) -> Controller:
    member = membership.find(ranks)
    _refuse_duplicates(asked, member.size)
    store = None
    if member.size > 1:
        names = ".".join(map(str, member.ranks))
        store = within(connect_store(member.settings), f"horovod/{which}/{names}")
    return Controller(member, horovod_settings(), store)


def _refuse_duplicates(asked: Sequence[ProcessSet], size: int) -> None:
    seen = {tuple(range(size))}
    for process_set in asked:
        ranks = tuple(process_set.ranks or ())
        if ranks in seen:
            raise ValueError(f"Attempted to register a duplicate process set: {process_set}")
        seen.add(ranks)


def shutdown() -> None:
    """Ends Horovod on this rank, and with it on all others: their operations in flight fail."""
    if (controller := take_current()) is not None:
        controller.stop()


atexit.register(shutdown)


def is_initialized() -> bool:
    return current() is not None


def controller() -> Controller:
    """The controller of this process. ValueError before `init`."""
    if (found := current()) is None:
        raise ValueError(NOT_INITIALIZED)
    return found


def rank() -> int:
    return controller().member.rank


def size() -> int:
    return controller().member.size


def local_rank() -> int:
    return controller().member.local_rank


def local_size() -> int:
    return controller().member.local_size


def cross_rank() -> int:
    return controller().member.cross_rank


def cross_size() -> int:
    return controller().member.cross_size


def is_homogeneous() -> bool:
    return controller().member.is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline from now on. Rank 0 writes; every rank may call it."""
    controller().start_timeline(file_path, marks_cycles=mark_cycles)


def stop_timeline() -> None:
    controller().stop_timeline()


# What Horovod was built with. Here: torch's Gloo always, NCCL if torch has it.


def gloo_built() -> bool:
    return True


def gloo_enabled() -> bool:
    controller()
    return True


def nccl_built() -> int:
    """The version of NCCL as a number, 0 without NCCL."""
    if not dist.is_nccl_available():
        return 0
    import torch

    major, minor, patch = (*torch.cuda.nccl.version(), 0, 0)[:3]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def cuda_built() -> bool:
    import torch

    return torch.version.cuda is not None


def rocm_built() -> bool:
    return False


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    controller()
    return False


def mpi_threads_supported() -> bool:
    controller()
    raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False
