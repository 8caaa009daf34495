"""Shared memory of the workers of one host, and the liveness of their processes.

The memory has no name in any file system: one worker creates it and hands its descriptor to the others (handover.py).
Further memory is announced in the first: a worker writes its process id and descriptor there, where no other account
can write. So no memory outlives a crash, and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import threading
from typing import Any

import torch

from paceline.errors import PeerLostError
from paceline.settings import of_this_process

PAGE = 4096


class Region:
    """Shared memory as a buffer, as a tensor of bytes, and as an address. Its tensors keep the memory alive."""

    def __init__(self, size: int, *, fd: int | None = None) -> None:
        """Creates new memory; with `fd`, maps the memory of another worker and takes ownership of the descriptor."""
        self._fd = -1
        self.size = max(1, -(-size // PAGE)) * PAGE
        if fd is None:
            self._fd = os.memfd_create("paceline", os.MFD_CLOEXEC)
            os.ftruncate(self._fd, self.size)
            self.memory = mmap.mmap(self._fd, self.size)
        else:
            try:
                self.memory = mmap.mmap(fd, self.size)
            finally:
                os.close(fd)
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @classmethod
    def of(cls, process: int, descriptor: int, size: int) -> Region:
        """Opens another worker's memory. `process` and `descriptor` must come from shared memory: they are trusted."""
        try:
            fd = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            raise PeerLostError(f"A worker (process {process}) has ended before its memory was shared.") from None
        try:
            fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # fails for a file: the descriptor number may have been reused for one
        except OSError:
            os.close(fd)
            raise PeerLostError(f"A worker (process {process}) has closed its memory before it was shared.") from None
        return cls(size, fd=fd)

    @property
    def fd(self) -> int:
        """The descriptor to hand over; -1 if the memory is another worker's, or after `close_door`."""
        return self._fd

    @property
    def place(self) -> tuple[int, int]:
        """Process id and descriptor, by which peers open the memory while this process lives and keeps it open."""
        return os.getpid(), self._fd

    def close_door(self) -> None:
        """Closes the descriptor, so that no further process can open the memory. Existing mappings stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close_door()


class Peers:
    """The processes of the other workers on this host, and whether they still live. Process ids are reused, so each
    process is identified by a process descriptor (pidfd)."""

    def __init__(self, processes: dict[int, int]) -> None:
        """Takes ownership of the process descriptor of each rank."""
        self._poll, self._lock = select.poll(), threading.Lock()
        self._ranks = {fd: rank for rank, fd in processes.items()}
        for fd in self._ranks:
            self._poll.register(fd, select.POLLIN)

    def gone(self) -> list[int]:
        """The ranks that have ended."""
        with self._lock:  # several threads wait for messages, and a poll object is not thread-safe
            return sorted(self._ranks[fd] for fd, _ in self._poll.poll(0))

    def __del__(self) -> None:
        for fd in self._ranks:
            os.close(fd)


def host_of_this_process() -> str:
    """A host id that is equal for two processes that can share memory: same kernel, same process namespace. The network
    namespace is part of the id, because a separate network namespace is meant as a separate host; so is the number of
    the host in the run, because two agents on one machine (two nodes of a Slurm that is tried out) pass descriptors on
    only among their own workers."""

    def inode(name: str) -> Any:
        return os.stat(f"/proc/self/ns/{name}").st_ino

    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{inode('pid')}/{inode('net')}/{of_this_process().host_rank}"
