"""The worker's end of the link to its launcher: a key-value store over an inherited Unix socket.

Workers exchange through this store all that they need to connect: addresses, NCCL ids, descriptors of shared memory.
Each worker inherits its socket, so the process at the other end is certainly the launcher. `LinkStore` is a subclass of
torch's Store: torch's process groups use it for their rendezvous, and no port is opened.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch.distributed as dist

from paceline.errors import PeerLostError
from paceline.settings import WorkerSettings
from paceline.torch_private import PrefixStore, TCPStore
from paceline.wire import frames
from paceline.wire import store as say

_FOREVER = datetime.timedelta(days=30)  # the stall inspector decides when waiting is too long
_NAPS = (0.0002, 0.02)  # seconds between two polls for a missing value: initial, maximum

_Store: Any = dist.distributed_c10d.Store  # missing from torch's type annotations
_of_this_process: LinkSocket | None = None


class LinkSocket:
    """The socket to the launcher, with one request at a time. Any thread may call `ask`."""

    def __init__(self, descriptor: int) -> None:
        """Takes ownership of the descriptor."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._decoder = msgspec.msgpack.Decoder(say.Told)
        # torch's groups hold a store only from C++, which does not keep the Python object alive.
        self.stores: list[LinkStore] = []
        self.while_waiting: Callable[[], None] | None = None  # raises if waiting for a key has become pointless
        self._asking: set[int] = set()  # threads inside `ask`
        self._due: dict[int, Callable[[], None]] = {}  # by thread: what to do after its request

    def ask(self, question: say.Ask, descriptors: list[int] | None = None) -> tuple[Any, list[int]]:
        """The answer and its descriptors. Raises PeerLostError if the launcher is gone, ValueError if it cannot answer
        this."""
        if os.getpid() != self._pid:
            raise PeerLostError("A process forked by a worker cannot use the worker's link to the launcher.")
        self._asking.add(threading.get_ident())
        try:
            with self._lock:
                try:
                    frames.send(self._socket, msgspec.msgpack.encode(question), descriptors)
                    body, came = frames.receive(self._socket)
                except (OSError, EOFError) as error:
                    raise PeerLostError("The launcher of this run is gone.") from error
        finally:
            self._asking.discard(threading.get_ident())
        if self._due and (due := self._due.pop(threading.get_ident(), None)) is not None:
            due()
        told = self._decoder.decode(body)
        if told.problem:
            raise ValueError(f"The store of the run: {told.problem}.")
        return told.value, came

    def when_free(self, action: Callable[[], None]) -> None:
        """Calls `action`, which may ask: now, or after the request that this thread waits for. For signal handlers,
        which may interrupt a request."""
        if threading.get_ident() in self._asking:
            self._due[threading.get_ident()] = action
        else:
            action()

    def use(self) -> None:
        """Makes this link the link of this process."""
        global _of_this_process
        _of_this_process = self


def link_of_this_process() -> LinkSocket | None:
    """The link of this process; None if Paceline's launcher has not started this process."""
    return _of_this_process


class LinkStore(_Store):
    """The launcher's store, below a prefix. Waits for a missing key until its timeout. The default timeout is 30 days,
    because the launcher ends the run if a worker ends or stalls."""

    def __init__(self, link: LinkSocket, prefix: str = "") -> None:
        super().__init__()
        self.link, self.prefix = link, prefix
        self.set_timeout(_FOREVER)
        link.stores.append(self)

    def within(self, name: str) -> LinkStore:
        return LinkStore(self.link, f"{self.prefix}{name}/")

    def give(self, key: str, descriptor: int) -> None:
        """Lets the other workers `take` this descriptor. The descriptor stays open in this process."""
        self.link.ask(say.Set(self.prefix + key, b""), [descriptor])

    def take(self, key: str) -> int:
        """Waits for another worker's descriptor and returns it. The caller must close the descriptor."""
        _, (descriptor,) = self._until_there(key, self.timeout)
        return descriptor

    # -- the interface of torch's Store, called from Python and from C++ -----------------------------------------------

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

    # C++ calls these two methods by other names.
    deleteKey, getNumKeys = delete_key, num_keys

    def _until_there(self, key: str, timeout: datetime.timedelta) -> tuple[bytes, list[int]]:
        nap, until = _NAPS[0], time.monotonic() + timeout.total_seconds()
        while True:
            value, descriptors = self.link.ask(say.Get(self.prefix + key))
            if value is not None:
                return value, descriptors
            if self.link.while_waiting is not None:
                self.link.while_waiting()
            nap = _nap(nap, until, key)


def connect_store(settings: WorkerSettings) -> Any:
    """The key-value store through which the workers of a run find each other: the store of Paceline's launcher. Under
    another launcher it is torch's TCPStore, served by rank 0, unless that launcher's agent already serves the store."""
    link = link_of_this_process()
    if link is not None:
        return LinkStore(link)
    master = settings.rank == 0 and not settings.agent_store
    return TCPStore(
        settings.store_host, settings.store_port, is_master=master, wait_for_workers=False, multi_tenant=True
    )


def within(store: Any, name: str) -> Any:
    """The part of a store below the prefix `name`."""
    return store.within(name) if isinstance(store, LinkStore) else PrefixStore(name, store)


def _nap(seconds: float, until: float, what: str) -> float:
    """Sleeps, and returns the seconds of the next sleep."""
    if time.monotonic() > until:
        raise dist.DistStoreError(f"wait timeout: no worker has set the key {what} in time")
    time.sleep(seconds)
    return min(2 * seconds, _NAPS[1])


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
