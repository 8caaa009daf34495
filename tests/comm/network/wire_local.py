"""The workers of a host over a wire: a `Local` that needs no shared memory, to test sums by hosts with."""

from __future__ import annotations

import torch

from paceline.comm.network import algorithms
from paceline.comm.network.costs import CHUNK
from paceline.comm.network.gloo_wire import Wire
from paceline.comm.network.parts import chunks, cut


class WireLocal:
    """The workers of a host over a wire: where they cannot share memory."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.rank, self.world = wire.rank, wire.world

    def reduce_parts(self, flat: torch.Tensor, parts: int) -> torch.Tensor:
        places = [flat[start:end] for start, end in cut(flat.numel(), parts)]
        others = [(self.rank + step) % self.world for step in range(1, self.world)]
        sent = [
            self._wire.send(chunk, peer) for peer in others if peer < parts for chunk in chunks(places[peer], CHUNK)
        ]
        own = places[self.rank] if self.rank < parts else flat[:0]
        exact = torch.float32 if flat.dtype in algorithms.HALVES else flat.dtype
        coming = [(chunk, peer) for chunk in chunks(own, CHUNK) for peer in others]
        arriving = algorithms.incoming(self._wire, coming)
        for chunk in chunks(own, CHUNK):
            total = chunk.to(exact)
            for _ in others:
                total += next(arriving)[1]
            if total is not chunk:
                chunk.copy_(total)
        for transfer in sent:
            transfer.wait()
        return own

    def share_parts(self, flat: torch.Tensor, parts: int) -> None:
        places = [chunks(flat[start:end], CHUNK) for start, end in cut(flat.numel(), parts)]
        others = [(self.rank + step) % self.world for step in range(1, self.world)]
        coming = [self._wire.receive(chunk, peer) for peer in others if peer < parts for chunk in places[peer]]
        own = places[self.rank] if self.rank < parts else []
        for transfer in [*(self._wire.send(chunk, peer) for chunk in own for peer in others), *coming]:
            transfer.wait()
