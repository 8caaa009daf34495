"""To a device: the next batch is on its way there while this one is used.

Batches go through pinned memory, of which there are two buffers a tensor unless they lie in such memory already, and
are copied on a stream of their own. On the CPU nothing is done.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from typing import Any

import torch

from paceline.data.metrics.meters import Meter
from paceline.data.planning.cursor import Context, Cursor, Mark, Opener
from paceline.data.planning.nodes import Through
from paceline.script import tree

BUFFERS = 2
PLACES = 64  # of which it is known whether they are pinned


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Between tensors of one kind in ordinary memory, on this core alone. torch shares a large copy out to all cores,
    and then waits for the last of them: on a machine that is busy with the next batch, many times as long."""
    if source.is_contiguous() and not (source.is_conj() or source.is_neg()):  # which are computed when they are read
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
    """For devices that have no streams."""

    def __init__(self, node: Moved, up: Cursor) -> None:
        self._device, self._up = node.device, up
        self.mark, self.where, self.close = up.mark, up.where, up.close  # type: ignore[method-assign]

    def take(self, count: int) -> list[Any]:
        return [tree.replace(value, self._move) for value in self._up.take(count)]

    def _move(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


class StreamedCursor(Cursor):
    """Keeps one batch on its way. What is done here for a batch, the script's own thread does not do meanwhile: hence
    what can be kept from batch to batch is kept."""

    def __init__(self, node: Moved, up: Cursor) -> None:
        self._device, self._up, self._meter = node.device, up, node.meter
        self._index = torch.cuda.current_device() if node.device.index is None else node.device.index
        self._stream = torch.cuda.Stream(node.device)
        self._moving: deque[tuple[Any, list[torch.Tensor], torch.cuda.Event, Mark]] = deque()
        self._pinned: dict[tuple[int, int], torch.Tensor] = {}  # (leaf, turn) → a buffer,
        self._lent: dict[tuple[int, int], torch.Tensor] = {}  # … and as much of it as the last one took
        self._is_pinned: dict[int, bool] = {}  # by address
        self._kept: list[list[torch.Tensor]] = [[] for _ in range(BUFFERS)]  # by turn: what is copied from where it is
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
                leaf.record_stream(current)  # its memory is not used again before what uses it now is done
            found.append(value)
        return found

    def _send(self) -> bool:
        """Starts the next batch on its way."""
        with self._meter.waiting():
            got = self._up.take(1)
        if not got:
            return False
        moved: list[torch.Tensor] = []
        event = self._copied[self._turn]
        with self._meter.working(1), torch.cuda.stream(self._stream):
            event.synchronize()  # the buffer is in use until then
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
        """To ask takes as long as to start a copy, and batches lie in a few places in turn. Where a later one lies
        there otherwise, that is a copy more, or one that is waited for: the numbers are the same."""
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
        if wait or any(self._kept):  # from where they lie: not to be filled anew before they are copied
            with contextlib.suppress(RuntimeError):
                self._stream.synchronize()
        self._moving.clear()
        self._up.close(wait=wait)
