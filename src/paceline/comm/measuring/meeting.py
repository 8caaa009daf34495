"""What measuring workers need of each other: to begin together, and to hear each other's times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Together(Protocol):
    """A group of workers: through the memory of one host (`MemoryEngine`), or over Gloo."""

    rank: int
    world: int

    def barrier(self) -> None: ...
    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None: ...
    def gather_bytes(self, raw: bytes) -> list[bytes]: ...


class OverGloo:
    """The group of a Gloo process group, whose workers are on several hosts."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = group.rank()
        self.world: int = group.size()

    def barrier(self) -> None:
        self._group.barrier().wait()

    def all_gather(self, own: torch.Tensor, into: Sequence[torch.Tensor]) -> None:
        self._group.allgather([list(into)], [own]).wait()

    def gather_bytes(self, raw: bytes) -> list[bytes]:
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world)]
        self.all_gather(torch.tensor([len(raw)]), sizes)
        lengths = [int(each) for each in sizes]
        longest = max(lengths)
        if not longest:
            return [b""] * self.world
        own = torch.frombuffer(bytearray(raw.ljust(longest, b"\0")), dtype=torch.uint8)
        into = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        self.all_gather(own, into)
        return [piece.numpy().tobytes()[:length] for piece, length in zip(into, lengths, strict=True)]
