"""`to(device)`: copies the next batch to the device while this one is used.

Batches are copied on a separate stream, through pinned memory: two buffers for each tensor, unless the tensor is pinned
already. On the CPU nothing is copied.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from typing import Any

import torch

from paceline.data.execution.parallel_map import size_of
from paceline.data.meters import Meter
from paceline.data.planning.nodes import Context, Cursor, Mark, Opener, Through
from paceline.script import tree

BUFFERS = 2
PLACES = 64  # addresses for which is_pinned() is remembered


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies between CPU tensors of one shape and type, on this core only. torch spreads a large copy over all cores
    and waits for the slowest: on a machine that is busy with the next batch, this takes many times as long."""
    if source.is_contiguous() and not (source.is_conj() or source.is_neg()):  # such views are computed when read
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        target.copy_(source)


class Moved(Through):
    def __init__(self, device: str, meter: Meter) -> None:
        self.device, self.meter = torch.device(device), meter

    def open(self, up: Opener, context: Context, mark: Mark | None) -> Cursor:
        inner = up(context, mark)
        return StreamedCursor(self, inner) if self.device.type == "cuda" else MovedCursor(self, inner)


class MovedCursor(Cursor):
    """Copies to devices without streams."""

    def __init__(self, node: Moved, up: Cursor) -> None:
        self._device, self._up = node.device, up
        self.mark, self.where, self.close = up.mark, up.where, up.close  # type: ignore[method-assign]

    def take(self, count: int) -> list[Any]:
        return [tree.replace(value, self._move) for value in self._up.take(count)]

    def _move(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


class StreamedCursor(Cursor):
    """Keeps one batch in flight. Runs in the script's thread, so whatever can be reused from batch to batch is kept."""

    def __init__(self, node: Moved, up: Cursor) -> None:
        self._device, self._up, self._meter = node.device, up, node.meter
        self._index = torch.cuda.current_device() if node.device.index is None else node.device.index
        self._stream = torch.cuda.Stream(node.device)
        self._moving: deque[tuple[Any, list[torch.Tensor], torch.cuda.Event, Mark]] = deque()
        self._pinned: dict[tuple[int, int], torch.Tensor] = {}  # (leaf, turn) → a buffer
        self._lent: dict[tuple[int, int], torch.Tensor] = {}  # (leaf, turn) → the part of the buffer last used
        self._is_pinned: dict[int, bool] = {}  # by address
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(BUFFERS)]  # by turn: pinned tensors being copied
        self._copied = [torch.cuda.Event() for _ in range(BUFFERS)]
        self._turn = 0
        self._mark = up.mark()

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            if not self._moving and not self._send():
                break
            value, moved, event, self._mark = self._moving.popleft()
            self._send()
            current = torch.cuda.current_stream(self._index)
            current.wait_event(event)
            for leaf in moved:
                leaf.record_stream(current)  # keeps its memory until the work on this stream is done
            found.append(value)
        return found

    def _send(self) -> bool:
        """Starts copying the next batch. False at the end of the stream."""
        with self._meter.waiting():
            got = self._up.take(1)
        if not got:
            return False
        moved: list[torch.Tensor] = []
        event = self._copied[self._turn]
        with self._meter.working(1), torch.cuda.stream(self._stream):
            event.synchronize()  # the last copy from this buffer must end first
            self._kept[self._turn].clear()
            value = tree.replace(got[0], lambda leaf: self._move(leaf, moved))
            event.record(self._stream)
        self._turn = (self._turn + 1) % BUFFERS
        self._moving.append((value, moved, event, self._up.mark()))
        return True

    def _move(self, leaf: Any, moved: list[torch.Tensor]) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type == "cpu":
            if self._lies_pinned(leaf):
                self._kept[self._turn].append(leaf)
            else:
                leaf = self._through_pinned(len(moved), leaf)
            leaf = leaf.to(self._device, non_blocking=True)
        moved.append(leaf)
        return leaf

    def _lies_pinned(self, leaf: torch.Tensor) -> bool:
        """Remembers is_pinned() by address, because the call takes as long as starting a copy, and batches reuse a few
        addresses. A wrong answer costs an extra or a blocking copy, but changes no numbers."""
        where = leaf.data_ptr()
        known = self._is_pinned.get(where)
        if known is None:
            if len(self._is_pinned) >= PLACES:
                self._is_pinned.clear()
            known = self._is_pinned[where] = leaf.is_pinned()
        return known

    def _through_pinned(self, number: int, leaf: torch.Tensor) -> torch.Tensor:
        key = number, self._turn
        lent = self._lent.get(key)
        if lent is None or lent.dtype != leaf.dtype or lent.shape != leaf.shape:
            buffer = self._pinned.get(key)
            if buffer is None or buffer.dtype != leaf.dtype or buffer.numel() < leaf.numel():
                buffer = self._pinned[key] = torch.empty(leaf.numel(), dtype=leaf.dtype, pin_memory=True)
            lent = self._lent[key] = buffer[: leaf.numel()].view(leaf.shape)
        copy(leaf, lent)
        return lent

    def ready(self) -> bool:
        return bool(self._moving) and self._up.ready()

    def mark(self) -> Mark:
        return self._mark

    def close(self, *, wait: bool = True) -> None:
        if wait or any(self._kept):  # pinned tensors must not be overwritten before they are copied
            with contextlib.suppress(RuntimeError):
                self._stream.synchronize()
        self._moving.clear()
        self._up.close(wait=wait)


# -- lookahead --------------------------------------------------------------------------------------------------------
# A training step on a GPU runs so much code that the pipeline's code is no longer in the CPU caches when the next batch
# is asked for. The first copy therefore takes three times as long as a copy directly after it.


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
