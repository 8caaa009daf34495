"""A worker's link to its launcher: the store in which the workers of a run meet, over a socket that only they have.

Everything by which workers find each other goes through here: addresses, NCCL's ids, the descriptors of shared memory.
The socket was inherited, so whoever answers at the other end is the launcher. Torch's own groups meet in a `LinkStore`,
which is one of torch's stores; none of them needs a port.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
import time
from typing import Any

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from paceline.comm.link import frames
from paceline.comm.link import messages as say
from paceline.errors import PeerLostError

_FOREVER = datetime.timedelta(days=30)  # the stall inspector decides when waiting is too long
_NAPS = (0.0002, 0.02)  # seconds between two questions for a value that is not there: at first, at most

_Store: Any = dist.distributed_c10d.Store  # torch leaves it out of its annotations
_of_this_process: Link | None = None


class Link:
    """The socket, and one question at a time over it. Any thread may ask."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._decoder = msgspec.msgpack.Decoder(say.Told)
        # Torch's groups hold their store from C++, where Python's part of it would not be kept alive.
        self.stores: list[LinkStore] = []

    def ask(self, question: say.Ask, descriptors: list[int] | None = None) -> tuple[Any, list[int]]:
        """The answer and its descriptors. PeerLostError where the launcher is gone."""
        if os.getpid() != self._pid:
            raise PeerLostError("A process that a worker has forked cannot join the workers' own groups.")
        with self._lock:
            try:
                frames.send(self._socket, msgspec.msgpack.encode(question), descriptors)
                body, came = frames.receive(self._socket)
            except (OSError, EOFError) as error:
                raise PeerLostError("The launcher of this run is gone.") from error
        return self._decoder.decode(body).value, came

    def use(self) -> None:
        """From now on this is the link of this process."""
        global _of_this_process
        _of_this_process = self


def link_of_this_process() -> Link | None:
    """None where no launcher of ours has started this process."""
    return _of_this_process


class LinkStore(_Store):
    """The launcher's store, below a prefix. Waits for missing keys as long as its timeout allows: by default for as
    long as it takes, since a launcher that sees a worker end or stall ends the run."""

    def __init__(self, link: Link, prefix: str = "") -> None:
        super().__init__()
        self.link, self.prefix = link, prefix
        self.set_timeout(_FOREVER)
        link.stores.append(self)

    def within(self, name: str) -> LinkStore:
        return LinkStore(self.link, f"{self.prefix}{name}/")

    def give(self, key: str, descriptor: int) -> None:
        """Lets the other workers `take` this descriptor. It stays open here."""
        self.link.ask(say.Set(self.prefix + key, b""), [descriptor])

    def take(self, key: str) -> int:
        """Another worker's descriptor; waits for it. The caller closes it."""
        _, (descriptor,) = self._until_there(key, self.timeout)
        return descriptor

    # -- what torch calls, in Python and in C++ ------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        self.link.ask(say.Set(self.prefix + key, _bytes(value)))

    def get(self, key: str) -> bytes:
        return self._until_there(key, self.timeout)[0]

    def add(self, key: str, amount: int) -> int:
        return int(self.link.ask(say.Add(self.prefix + key, amount))[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(self.link.ask(say.CompareSet(self.prefix + key, _bytes(expected), _bytes(desired)))[0])

    def check(self, keys: list[str]) -> bool:
        return bool(self.link.ask(say.Has([self.prefix + key for key in keys]))[0])

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        nap, until = _NAPS[0], time.monotonic() + (timeout or self.timeout).total_seconds()
        while not self.check(keys):
            nap = _nap(nap, until, ", ".join(keys))

    def delete_key(self, key: str) -> bool:
        return bool(self.link.ask(say.Delete(self.prefix + key))[0])

    def num_keys(self) -> int:
        return int(self.link.ask(say.Count(self.prefix))[0])

    def clone(self) -> LinkStore:
        return LinkStore(self.link, self.prefix)

    # In C++ these two go by other names.
    deleteKey, getNumKeys = delete_key, num_keys

    def _until_there(self, key: str, timeout: datetime.timedelta) -> tuple[bytes, list[int]]:
        nap, until = _NAPS[0], time.monotonic() + timeout.total_seconds()
        while True:
            value, descriptors = self.link.ask(say.Get(self.prefix + key))
            if value is not None:
                return value, descriptors
            nap = _nap(nap, until, key)


def within(store: Any, name: str) -> Any:
    """A part of a store, under a name of its own."""
    return store.within(name) if isinstance(store, LinkStore) else PrefixStore(name, store)


def _nap(seconds: float, until: float, what: str) -> float:
    """Sleeps; gives the length of the next nap."""
    if time.monotonic() > until:
        raise dist.DistStoreError(f"wait timeout: no worker has set {what} in time")
    time.sleep(seconds)
    return min(2 * seconds, _NAPS[1])


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
