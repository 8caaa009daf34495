"""A two-hop all-reduce for values that are encoded on the network and summed in full precision.

Each worker owns one part. The other workers send their encoded values of this part directly to the owner. The owner
decodes the values, adds them in full precision in rank order, encodes the sum once and sends the sum to all workers. So
a value is rounded only twice, for any number of workers: when it leaves its worker, and in the sum. An algorithm that
adds along the way would round at every hop. The algorithm moves the fewest possible bytes, in 2 (n - 1) messages that
do not wait for each other.
"""

from __future__ import annotations

from typing import Protocol

import torch

from paceline.comm.network.costs import CHUNK
from paceline.comm.network.gloo_wire import Transfer, Wire
from paceline.comm.network.parts import chunks, cut


class Codec(Protocol):
    """The encoding of values on the network. Encoding and decoding are deterministic: all workers get the same bits."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The encoded values: a new flat tensor whose dtype and length depend only on those of `values`."""

    def empty(self, values: torch.Tensor) -> torch.Tensor:
        """An uninitialized tensor with the dtype and length of `encode(values)`."""

    def decode(self, encoded: torch.Tensor, length: int) -> torch.Tensor:
        """The `length` decoded values, in a dtype that can be added to the sum."""


class Cast:
    """Encodes values by a cast to another dtype. Not for integers, which a cast to a shorter dtype would corrupt."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.dtype, copy=True)

    def empty(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty(values.numel(), dtype=self.dtype, device="cpu")

    def decode(self, encoded: torch.Tensor, length: int) -> torch.Tensor:
        return encoded


def direct(flat: torch.Tensor, wire: Wire, codec: Codec) -> None:
    """Sums `flat` over the workers of the wire, in place. All workers get the same bits, also the owner of a part: the
    decoded values of the encoded sum."""
    rank, world = wire.rank, wire.world
    others = [(rank + step) % world for step in range(1, world)]  # rotated: workers do not all send to rank 0 first
    parts = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), world)]
    sent = list[Transfer]()

    def receive(chunk: torch.Tensor, source: int) -> tuple[torch.Tensor, Transfer]:
        room = codec.empty(chunk)
        return room, wire.receive(room, source)

    def send(encoded: torch.Tensor, to: int) -> None:
        sent.append(wire.send(encoded, to))

    given = {peer: [receive(chunk, peer) for chunk in parts[rank]] for peer in others}
    for number in range(len(parts[0])):  # parts[0] has the most chunks
        for peer in others:
            if number < len(parts[peer]):
                send(codec.encode(parts[peer][number]), peer)
    sums = {peer: [receive(chunk, peer) for chunk in parts[peer]] for peer in others}

    # float16 and bfloat16 are summed in float32: the sum is more exact, and a decoded value may need the range.
    exact = torch.float32 if flat.dtype in (torch.float16, torch.bfloat16) else flat.dtype
    for number, chunk in enumerate(parts[rank]):
        total = torch.zeros(chunk.numel(), dtype=exact, device="cpu")
        for peer in range(world):
            if peer == rank:
                total += chunk
                continue
            room, transfer = given[peer][number]
            transfer.wait()
            total += codec.decode(room, chunk.numel())
        encoded = codec.encode(total)
        for peer in others:
            send(encoded, peer)
        chunk.copy_(codec.decode(encoded, chunk.numel()))
    for number in range(len(parts[0])):
        for peer in others:
            if number < len(parts[peer]):
                room, transfer = sums[peer][number]
                transfer.wait()
                parts[peer][number].copy_(codec.decode(room, parts[peer][number].numel()))
    for each in sent:
        each.wait()
