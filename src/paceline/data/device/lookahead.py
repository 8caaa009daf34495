"""Bursts: a few batches at once, where they lie ready.

A script that drives a GPU runs through so much code in a step that none of the pipeline's is in the processor's caches
when the next batch is asked for: it takes three times as long as the one right after it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from paceline.data.execution.parallel_map import size_of
from paceline.data.planning.cursor import Cursor, Mark
from paceline.script import tree

MOST = 4  # batches
ROOM = 64 << 20  # bytes that they may take together, on the device


class Lookahead(Cursor):
    """Waits for no batch but the one that is asked for."""

    def __init__(self, up: Cursor, device: torch.device) -> None:
        self._up, self._device, self._mark = up, device, up.mark()
        self._made: deque[tuple[Any, Mark]] = deque()
        self._stream: torch.cuda.Stream | None = None  # on which they are made
        self._failed: Exception | None = None
        self._most = 0  # 0: not known before the first one's size is

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count and (self._made or self._burst()):
            value, self._mark = self._made.popleft()
            found.append(self._on_this_stream(value))
        return found

    def _burst(self) -> bool:
        """False at the end of the stream."""
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        self._stream = torch.cuda.current_stream(self._device)
        if not self._one():
            return False
        try:
            while len(self._made) < self._most and self._up.ready() and self._one():
                pass
        except Exception as error:
            self._failed = error  # told after those that came before it
        return True

    def _one(self) -> bool:
        got = self._up.take(1)
        if not got:
            return False
        self._made.append((got[0], self._up.mark()))
        self._most = self._most or max(1, min(MOST, ROOM // max(1, size_of(got[0]))))
        return True

    def _on_this_stream(self, value: Any) -> Any:
        """A script may use another stream by now than it did when this was made."""
        current = torch.cuda.current_stream(self._device)
        if self._stream is not None and current != self._stream:
            current.wait_stream(self._stream)
            for leaf in tree.leaves(value):
                if isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda":
                    leaf.record_stream(current)
        return value

    def mark(self) -> Mark:
        return self._mark

    def close(self, *, wait: bool = True) -> None:
        self._made.clear()
        self._up.close(wait=wait)
