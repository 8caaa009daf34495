"""Memory that the workers of one host share, and how they find it.

It has no name in any file system: a worker makes it, and its descriptor is handed to the others (handover.py). Further
memory is found through the first: a worker writes its process and descriptor there, where nobody else can. So nothing
outlives a crash, and a small /dev/shm does not matter.
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

PAGE = 4096


class Region:
    """Shared memory as bytes, as a tensor of bytes, and as an address. Keeps itself alive through its tensors."""

    def __init__(self, size: int, *, fd: int | None = None) -> None:
        """Makes new memory, or takes over the descriptor of another worker's."""
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
        with torch.inference_mode(False):  # else it could not be written to outside
            self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    @classmethod
    def of(cls, process: int, descriptor: int, size: int) -> Region:
        """Opens another worker's memory at a place that this worker was told through memory that they share."""
        try:
            fd = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            raise PeerLostError(f"A worker (process {process}) has ended before its memory was shared.") from None
        try:
            fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # only memory has seals: a number that was used again may name a file
        except OSError:
            os.close(fd)
            raise PeerLostError(f"A worker (process {process}) has closed its memory before it was shared.") from None
        return cls(size, fd=fd)

    @property
    def fd(self) -> int:
        """To be handed over; -1 where the memory is another worker's, or its door is closed."""
        return self._fd

    @property
    def place(self) -> tuple[int, int]:
        """Where others open it, as long as this process lives and has not closed it."""
        return os.getpid(), self._fd

    def close_door(self) -> None:
        """All who are to share it have opened it: nobody else can."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close_door()


class Peers:
    """The other workers on this host, as processes: whether they still live. Process numbers are used again, so each is
    held by a descriptor of its own."""

    def __init__(self, processes: dict[int, int]) -> None:
        """Takes over the descriptor of each rank's process."""
        self._poll, self._lock = select.poll(), threading.Lock()
        self._ranks = {fd: rank for rank, fd in processes.items()}
        for fd in self._ranks:
            self._poll.register(fd, select.POLLIN)

    def gone(self) -> list[int]:
        """The ranks that have ended."""
        with self._lock:  # several threads wait for messages, and a poll object serves one
            return sorted(self._ranks[fd] for fd, _ in self._poll.poll(0))

    def __del__(self) -> None:
        for fd in self._ranks:
            os.close(fd)


def host_of_this_process() -> str:
    """Equal for two processes that can share memory: the same kernel, and namespaces in which they see each other. One
    network namespace, too: who is put into another is meant to be another host."""

    def inode(name: str) -> Any:
        return os.stat(f"/proc/self/ns/{name}").st_ino

    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{inode('pid')}/{inode('net')}"
