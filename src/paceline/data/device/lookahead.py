"""Lookahead: starts the copies of several ready batches at once.

A training step on a GPU runs so much code that the pipeline's code is no longer in the CPU caches when the next batch
is asked for. The first copy therefore takes three times as long as a copy directly after it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from paceline.data.execution.parallel_map import size_of
from paceline.data.planning.cursor import Cursor, Mark
from paceline.script import tree

MOST = 4  # batches at once
ROOM = 64 << 20  # bytes on the device that these batches may take together


class Lookahead(Cursor):
    """Waits only for the batch that is asked for; further batches are taken only if they are ready."""

    def __init__(self, up: Cursor, device: torch.device) -> None:
        self._up, self._device, self._mark = up, device, up.mark()
        self._made: deque[tuple[Any, Mark]] = deque()
        self._stream: torch.cuda.Stream | None = None  # the stream on which the batches were made
        self._failed: Exception | None = None
        self._most = 0  # batches at once; 0: the size of a batch is not known yet

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count and (self._made or self._burst()):
            value, self._mark = self._made.popleft()
            found.append(self._on_this_stream(value))
        return found

    def _burst(self) -> bool:
        """Takes one batch, and those that are ready. False at the end of the stream."""
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
            self._failed = error  # raised after the batches before it
        return True

    def _one(self) -> bool:
        got = self._up.take(1)
        if not got:
            return False
        self._made.append((got[0], self._up.mark()))
        self._most = self._most or max(1, min(MOST, ROOM // max(1, size_of(got[0]))))
        return True

    def _on_this_stream(self, value: Any) -> Any:
        """Makes a batch safe on the current stream, which may differ from the stream on which it was made."""
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
