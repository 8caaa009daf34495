"""Tensors from one worker to another: a list of tensors and a plain value (see `plain`) is one parcel.

On one host parcels go through shared memory, otherwise over Gloo; tensors of a GPU go through host memory. Sending
happens on a thread of its own, so that a worker computes on while its peer is still busy.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from paceline import threads
from paceline.comm import plain
from paceline.comm.memory.flats import bytes_of
from paceline.comm.memory.mailbox import Mailbox

TAG = 0
Waiting = Callable[[str], AbstractContextManager[None]]
Deliver = Callable[[torch.Tensor, int], None]


class Post:
    """The parcels of one worker. Parcels between two workers arrive in the order in which they were sent."""

    def __init__(self, waiting: Waiting, send: Deliver, receive: Deliver) -> None:
        """`waiting`: of the group, round each wait."""
        self._waiting, self._send, self._receive = waiting, send, receive
        self._outgoing: queue.SimpleQueue[tuple[int, list[torch.Tensor]] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        threads.start("paceline-post", self._deliver)

    def send(self, to: int, value: Any, tensors: Sequence[torch.Tensor | None]) -> None:
        """Sends a copy, and returns at once. If the peer is gone, a later `send` or `receive` raises."""
        self._check()
        heads = [None if t is None else [list(t.shape), str(t.dtype).removeprefix("torch.")] for t in tensors]
        head = torch.frombuffer(bytearray(plain.encode([value, heads])), dtype=torch.uint8)
        size = torch.tensor([head.numel()], device="cpu").view(torch.uint8)
        # A copy: the caller's next operation may change the tensor before the thread reads it.
        bodies = [bytes_of(_on_host(t).reshape(-1)) for t in tensors if t is not None and t.numel()]
        self._outgoing.put((to, [size, head, *bodies]))

    def receive(self, source: int, what: str) -> tuple[Any, list[torch.Tensor | None]]:
        """The next parcel from this worker, with tensors in host memory. Waits for it; `PeerLostError` if the peer is
        gone."""
        self._check()
        with self._waiting(what):
            size = torch.empty(1, dtype=torch.int64, device="cpu")
            self._receive(size.view(torch.uint8), source)
            head = torch.empty(int(size), dtype=torch.uint8, device="cpu")
            self._receive(head, source)
            value, heads = plain.decode(head.numpy().tobytes())
            tensors: list[torch.Tensor | None] = []
            for found in heads:
                tensors.append(None)
                if found is not None:
                    tensors[-1] = body = torch.empty(found[0], dtype=getattr(torch, found[1]), device="cpu")
                    if body.numel():
                        self._receive(bytes_of(body.view(-1)), source)
        return value, tensors

    def close(self) -> None:
        """Ends the thread, after what it still has to send."""
        self._outgoing.put(None)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _deliver(self) -> None:
        try:
            while True:
                if (parcel := self._outgoing.get()) is None:
                    return
                to, messages = parcel
                for message in messages:
                    self._send(message, to)
        except BaseException as error:  # raised in the script's own thread
            self._error = error
            if isinstance(error, (OSError, MemoryError, torch.OutOfMemoryError)):
                raise  # no peer is gone: they and the script's thread may wait for each other


def through_memory(waiting: Waiting, mailbox: Mailbox) -> Post:
    return Post(
        waiting,
        lambda data, to: mailbox.send(data, to, TAG),
        lambda data, source: mailbox.receive(data, source, TAG),
    )


def over_gloo(waiting: Waiting, connected: Any) -> Post:
    return Post(
        waiting,
        lambda data, to: connected.send([data], to, TAG).wait(),
        lambda data, source: connected.recv([data], source, TAG).wait(),
    )


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
