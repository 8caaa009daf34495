"""Tensors from one worker to another: a list of tensors and a plain value (of `encode`) is one parcel.

On one host parcels go through shared memory, otherwise over Gloo; tensors of a GPU go through host memory. Sending
happens on a thread of its own, so that a worker computes on while its peer is still busy.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import torch

from paceline import threads
from paceline.comm.call_site import script_line
from paceline.comm.memory.flats import bytes_of
from paceline.comm.memory.mailbox import Mailbox
from paceline.errors import PartedError

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
        head = torch.frombuffer(bytearray(encode([value, heads])), dtype=torch.uint8)
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
            value, heads = decode(head.numpy().tobytes())
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


# -- plain values -----------------------------------------------------------------------------------------------------
# Decoding never runs code, even for hostile input.
#
# Plain values are None, bool, numbers, str, bytes, tensors, and lists and dicts of these. Tuples and sets decode as
# lists.
#
# An exchange of values has two messages: the sizes, and the encoded values. Shared memory compares the labels of all
# collectives. Gloo compares none: the sizes come with a number that marks them as such, and the label travels with the
# value, so that workers that are out of step do not take each other's values for those of their own exchange.


MARK = 0x6F626A6563747321  # comes with the sizes of an exchange; no other collective begins with this number
BRANCH = "Look for a branch of the script that depends on time, on unseeded randomness or on the process."

_TENSOR, _INTEGER = 1, 2  # codes of our msgpack extensions
_INTEGER_LIMIT = 1 << 63  # integers outside ± this limit are sent as an extension


def encode(value: Any) -> bytes:
    """The value as bytes. Raises TypeError if the value is not plain."""
    return _encoder.encode(_wrap_large_integers(value))


def decode(raw: bytes | memoryview) -> Any:
    """The value that `encode` was given. Raises msgspec.DecodeError if the bytes are not valid."""
    return _decoder.decode(raw)


def gather(group: Any, value: Any, what: str) -> list[Any]:
    """The value of each worker of a `Group`, in rank order. Every worker calls it; waits for all. If a peer is at an
    exchange with another label, every worker raises PartedError, which names the labels and the script's lines."""
    line = script_line()
    raw = torch.frombuffer(bytearray(encode([what, line, value])), dtype=torch.uint8)
    heads = group.gather_vectors(torch.tensor([MARK, raw.numel()], device="cpu"), what).tolist()
    if any(mark != MARK for mark, _ in heads):  # that worker's "size" is a number of another collective
        calls = ["an exchange of objects" if mark == MARK else "another collective" for mark, _ in heads]
        calls[group.rank] = f"{what} at {line}"
        raise group.ending.carry(_parted(calls))
    sizes = [size for _, size in heads]
    told = [decode(part.numpy().tobytes()) for part in group.gather_rows(raw, 0, sizes, what).split(sizes)]
    if any(label != what for label, _, _ in told):
        raise group.ending.carry(_parted([f"{label} at {line}" for label, line, _ in told]))
    return [sent for _, _, sent in told]


def _parted(calls: Sequence[str]) -> PartedError:
    """`calls[r]` describes the collective of worker r."""
    said = "; ".join(f"worker {rank}: {call}" for rank, call in enumerate(calls))
    return PartedError(f"The workers entered different collectives: {said}", advice=BRANCH)


def _wrap_large_integers(value: Any) -> Any:
    """Replaces large integers anywhere in a value: msgspec does not call the encoder hook for integers."""
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        return msgspec.msgpack.Ext(_INTEGER, str(value).encode())
    if isinstance(value, (list, tuple, set)):
        return [_wrap_large_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: _wrap_large_integers(item) for key, item in value.items()}
    return value


def _encode_tensor(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise TypeError(f"Cannot send a {type(value).__name__} between workers: it is not a plain value.")
    flat = value.detach().cpu().contiguous().view(-1)
    head = msgspec.msgpack.encode((str(value.dtype).removeprefix("torch."), tuple(value.shape)))
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return msgspec.msgpack.Ext(_TENSOR, len(head).to_bytes(2, "big") + head + raw)


def _decode_extension(code: int, data: memoryview) -> Any:
    if code == _INTEGER:
        return int(bytes(data))
    if code != _TENSOR:
        raise ValueError(f"Unknown msgpack extension code {code}")
    size = int.from_bytes(data[:2], "big")
    name, shape = msgspec.msgpack.decode(data[2 : 2 + size], type=tuple[str, tuple[int, ...]])
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"Unknown torch dtype {name!r}")
    raw = bytearray(data[2 + size :])
    return torch.frombuffer(raw, dtype=dtype).view(shape) if raw else torch.empty(shape, dtype=dtype, device="cpu")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_tensor)
_decoder = msgspec.msgpack.Decoder(ext_hook=_decode_extension)
