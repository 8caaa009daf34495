"""A sum in two hops, for numbers that travel in another form than they are added up in.

Each worker owns one part. All others send theirs straight to it, encoded; it decodes them, adds them up in full
precision, in the order of ranks, encodes the sum once and sends it to all. So a value is rounded where it leaves a
worker and where its sum does, however many workers there are. An algorithm that adds on the way would round at every
hop. It moves as few bytes as can be, in 2 (n - 1) messages that need not wait for each other.
"""

from __future__ import annotations

from typing import Protocol

import torch

from paceline.comm.network.costs import CHUNK
from paceline.comm.network.messages import Transfer, Wire
from paceline.comm.network.parts import chunks, cut


class Codec(Protocol):
    """A form in which numbers travel. The same values give the same bytes, and the same bytes the same values, on every
    worker."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """What travels: a flat tensor of its own memory, of a dtype and length that follow from those of `values`."""

    def empty(self, values: torch.Tensor) -> torch.Tensor:
        """Room for what travels in place of these values."""

    def decode(self, encoded: torch.Tensor, length: int) -> torch.Tensor:
        """The values, in the dtype that they are added up in."""


class Cast:
    """Travels as another dtype. Not for integers, which it would cut."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.dtype, copy=True)

    def empty(self, values: torch.Tensor) -> torch.Tensor:
        return torch.empty(values.numel(), dtype=self.dtype)

    def decode(self, encoded: torch.Tensor, length: int) -> torch.Tensor:
        return encoded


def direct(flat: torch.Tensor, wire: Wire, codec: Codec) -> None:
    """Sums `flat` over the workers of the wire, in place; all end with the same bits, the decoded ones."""
    rank, world = wire.rank, wire.world
    others = [(rank + step) % world for step in range(1, world)]  # not all start with the same one
    parts = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), world)]
    sent = list[Transfer]()

    def receive(chunk: torch.Tensor, source: int) -> tuple[torch.Tensor, Transfer]:
        room = codec.empty(chunk)
        return room, wire.receive(room, source)

    def send(encoded: torch.Tensor, to: int) -> None:
        sent.append(wire.send(encoded, to))

    given = {peer: [receive(chunk, peer) for chunk in parts[rank]] for peer in others}
    for number in range(len(parts[0])):  # the longest
        for peer in others:
            if number < len(parts[peer]):
                send(codec.encode(parts[peer][number]), peer)
    sums = {peer: [receive(chunk, peer) for chunk in parts[peer]] for peer in others}

    # Half types are added up in float32: more exact, and what a decoded value may need.
    exact = torch.float32 if flat.dtype in (torch.float16, torch.bfloat16) else flat.dtype
    for number, chunk in enumerate(parts[rank]):
        total = torch.zeros(chunk.numel(), dtype=exact)
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
