"""A ledger: the digests of one worker, folded into one number that is compared with the other workers' numbers.

Workers add to a ledger at the same places of the script. `shown` gives two numbers that ride on a message that is sent
anyway: how many digests a worker has folded, and the result. Digests on a GPU are copied asynchronously and folded once
they are on the host, so no worker waits for the GPU. A worker whose digest is late shows a smaller count, and the
workers compare at the next message in which all counts are equal. Later digests are folded on top of earlier ones, so
none is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

FACTOR = 0x9E3779B97F4A7C15  # odd: earlier digests keep their influence on the fold
MASK = (1 << 64) - 1
MOST = 1 << 14  # digests kept for the comparison if the workers' counts never become equal


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One digest, and what it was computed from."""

    digest: int
    about: Any


class Ledger:
    """The ledger of one worker."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []  # since all workers last agreed
        self.last: LedgerEntry | None = None  # before these
        self._count = self._fold = self._agreed = 0
        self._pending: deque[tuple[_Copy, int, Any]] = deque()

    def add(self, digests: Sequence[torch.Tensor], about: Any, number: int = 0) -> None:
        """Adds digests on any devices, and a number from the host, as one entry."""
        self._pending.append((_Copy(digests), number, about))

    @property
    def has_news(self) -> bool:
        """Whether there are digests that `shown` has not folded yet."""
        return bool(self._pending)

    def shown(self, *, wait: bool = False) -> tuple[int, int]:
        """The number of folded digests and the result, as signed 64-bit numbers; with `wait`, of all digests."""
        while self._pending and self._pending[0][0].is_here(wait=wait):
            copy, number, about = self._pending.popleft()
            digest = number & MASK
            for value in copy.values():
                digest = _folded(digest, value)
            self._fold = _folded(self._fold, digest)
            self._count += 1
            self.entries.append(LedgerEntry(digest, about))
            del self.entries[:-MOST]
        return self._count, signed(self._fold)

    def disagrees(self, shown: Sequence[tuple[int, int]]) -> bool:
        """Whether the numbers that all workers have shown in one message are comparable and differ."""
        counts, folds = {count for count, _ in shown}, {fold for _, fold in shown}
        if len(counts) > 1 or counts == {self._agreed}:
            return False
        if len(folds) > 1:
            return True
        self._agree()
        return False

    def settle(self) -> None:
        """After the workers have examined a difference and continue: they compare later digests only."""
        self._agree()
        self._fold = 0

    def _agree(self) -> None:
        self._agreed = self._count
        self.last = self.entries[-1] if self.entries else self.last
        self.entries.clear()


class _Copy:
    """Numbers on their way from a device to the host."""

    def __init__(self, digests: Sequence[torch.Tensor]) -> None:
        self._events: list[Any] = []
        self._hosts: list[torch.Tensor] = []
        for tensor in digests:
            if tensor.is_cuda:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                self._hosts.append(host.copy_(tensor, non_blocking=True))
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(tensor.device))
                self._events.append(event)
            else:
                self._hosts.append(tensor.to("cpu"))

    def is_here(self, *, wait: bool) -> bool:
        if wait:
            for event in self._events:
                event.synchronize()
        return all(event.query() for event in self._events)

    def values(self) -> list[int]:
        return [int(host) & MASK for host in self._hosts]


def _folded(fold: int, value: int) -> int:
    return (fold * FACTOR + value + 1) & MASK


def signed(value: int) -> int:
    """The same bits as a signed number, because tensors hold signed numbers."""
    return value - (1 << 64) if value >> 63 else value
