"""Memory that the workers of one host share, and how they find it.

It has no name in any file system: a worker makes it, tells the others its process and descriptor through the store, and
they open that. So nothing outlives a crash, and a small /dev/shm does not matter.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import threading
from typing import Any, Protocol

import torch

from paceline.errors import PeerLostError

PAGE = 4096


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def delete_key(self, key: str, /) -> bool: ...


class Region:
    """Shared memory as bytes, as a tensor of bytes, and as an address. Keeps itself alive through its tensors."""

    def __init__(self, size: int, *, of: tuple[int, int] | None = None) -> None:
        """Makes a new one, or with `of` (process, descriptor) opens another worker's."""
        self._fd = -1
        self.size = max(1, -(-size // PAGE)) * PAGE
        if of is None:
            self._fd = os.memfd_create("paceline", os.MFD_CLOEXEC)
            os.ftruncate(self._fd, self.size)
            fd = self._fd
        else:
            try:
                fd = os.open(f"/proc/{of[0]}/fd/{of[1]}", os.O_RDWR | os.O_CLOEXEC)
            except (FileNotFoundError, ProcessLookupError):
                raise PeerLostError(f"A worker (process {of[0]}) has ended before its memory was shared.") from None
        self.memory = mmap.mmap(fd, self.size)
        if of is not None:
            os.close(fd)
        with torch.inference_mode(False):  # else it could not be written to outside
            self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

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

    def __init__(self, pids: list[int], rank: int) -> None:
        self._poll, self._lock = select.poll(), threading.Lock()
        self._ranks: dict[int, int] = {}
        for peer, pid in enumerate(pids):
            if peer != rank:
                try:
                    fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    raise PeerLostError(f"A worker (process {pid}) has ended before all had met.") from None
                self._ranks[fd] = peer
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
