"""Gradient buckets: flat memory that gradients live in, reduced as soon as it is full, while backward goes on.

The first backward of a kind (from one line of the script) shows which parameters it reaches and in which order; from
the second on, a bucket is sent off when its last gradient has been written. A small last message, the tail, carries the
loss and what a caller sends along, and tells every worker which parameters were reached anywhere: one that only another
worker's slice used gets its gradient here, too, and one that nobody used keeps none.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from paceline.comm.bucket import Bucket, Slot, Tail
from paceline.comm.group import Group
from paceline.errors import ScriptError

FIRST = 1 << 20  # bytes: a small first bucket, so that sending begins early
SIZE = 25 << 20
REACHED, ODD = 1.0, 2.0  # in the tail: has a gradient; has one that cannot live in a bucket


class Watcher(Protocol):
    """Sees gradients before they are summed, and after. It keeps none of them."""

    def sending(self, flat: torch.Tensor) -> None:
        """A bucket of this worker's own gradients, divided by the number of workers."""

    def arrived(self, flats: list[torch.Tensor], whole: bool) -> None:
        """All buckets of a backward, summed; `whole` where no gradient went another way."""


class Buckets:
    """The gradients of all known parameters. `begin`, `ready` for each gradient, `finish`: once a backward."""

    def __init__(
        self, group: Group, average: Callable[[torch.Tensor], None], *, size: int = SIZE, first: int = FIRST
    ) -> None:
        """`average` replaces a parameter's gradient that cannot live in a bucket (sparse, or with a graph of its own)
        by the global one; every worker calls it for the same parameters in the same order."""
        self.group, self._average, self.size, self.first = group, average, size, first
        self.slots: list[Slot] = []
        self.watcher: Watcher | None = None
        self.waited = 0.0  # seconds in which nothing was done but wait for sums
        self._keys = itertools.count()
        self._late: set[int] = set()  # slots whose gradient came more than once in a backward: sent at the end
        self._order: list[int] = []  # as gradients came in this backward
        self._kinds: dict[int, list[Bucket]] = {}  # by place in the script: its buckets in the order of sending
        self._sending: list[Bucket] = []
        self._sent = 0
        self._keeping = False
        self._kept: dict[int, None] = {}  # slots whose gradients were kept back, in order

    def adopt(self, parameter: torch.Tensor, name: str = "") -> int:
        """A parameter joins; all workers adopt in the same order."""
        self.slots.append(Slot(weakref.ref(parameter), name or f"parameter {len(self.slots)}"))
        return len(self.slots) - 1

    def begin(self, site: int) -> None:
        """A backward begins at this place in the script."""
        self._end_broken_off()
        self._sending = self._kinds.setdefault(site, [])
        self._order, self._sent, self._keeping = [], 0, False
        for slot in self.slots:
            slot.fired = slot.filled = False
        for bucket in list(self._sending):
            bucket.missing, bucket.pending, bucket.began = len(bucket.slots), None, 0.0
            self._make_fit(bucket)

    def all(self) -> list[Bucket]:
        """Those of every place in the script, each once."""
        return list(dict.fromkeys(bucket for buckets in self._kinds.values() for bucket in buckets))

    def resize(self, size: int) -> None:
        """From the next backward on buckets are of this size. Every worker calls it, between two backwards."""
        if size != self.size:
            self.size = size
            for bucket in self.all():
                self._dissolve(bucket)

    def keep_back(self) -> None:
        """A backward begins whose gradients stay here: they are sent with the next one that is not kept back."""
        self._end_broken_off()
        self._keeping = True

    def ready(self, index: int, parameter: torch.Tensor) -> None:
        """A parameter's gradient is complete: called by its hook, in backward."""
        if self._keeping:
            self._kept[index] = None
            return
        slot = self.slots[index]
        bucket = slot.bucket
        if slot.fired:
            self._late.add(index)
            if bucket is not None and bucket.pending is not None:
                raise ScriptError(
                    "A parameter's gradient came a second time in one backward, after it had been sent to the workers.",
                    advice="Checkpointed segments that share a parameter: use checkpoint(…, use_reentrant=False).",
                )
            return
        slot.fired = True
        self._order.append(index)
        if bucket is None or index in self._late or bucket not in self._sending or _odd(parameter):
            return
        self._fill(slot, parameter)
        bucket.missing -= 1
        while self._sent < len(self._sending) and not self._sending[self._sent].missing:
            self._send(self._sending[self._sent])
            self._sent += 1
        self.group.progress()

    def finish(self, loss: float, share: float, riders: Sequence[int] = ()) -> list[Tail]:
        """Sends the rest and waits: then all known parameters that were reached on any worker have the global gradient.
        Gives each worker's tail. `riders` are numbers of the caller's, as many on each worker, that travel with it."""
        self._order += [index for index in self._kept if not self.slots[index].fired]
        self._kept.clear()
        first = 2 + len(riders)
        tails = self.group.gather_vectors(self._tail(loss, share, riders), "gradients")
        state = tails[:, first:].max(0).values.tolist()
        reached = {index for index, value in enumerate(state) if value == REACHED}
        self._line_up([index for index in sorted(reached) if self.slots[index].bucket not in self._sending])
        wanted = {id(self.slots[index]) for index in reached}
        for bucket in self._sending[self._sent :]:
            if any(id(slot) in wanted for slot in bucket.slots):
                self._complete(bucket, wanted)
                self._send(bucket)
        for index, value in enumerate(state):
            if value == ODD and (parameter := self.slots[index].parameter()) is not None:
                self._average(parameter)
        flats = [bucket.flat for bucket in self._sending if bucket.pending is not None]
        for number, bucket in enumerate(self._sending):
            if bucket.pending is not None:
                began = time.perf_counter()
                bucket.pending.finish(bucket.what)
                self.waited += time.perf_counter() - began
                if self.group.timeline is not None:
                    self._tell(number, bucket, began)
                bucket.pending = None
        if self.watcher is not None:
            self.watcher.arrived(flats, ODD not in state)
        carried = tails[:, 2:first].contiguous().view(torch.int64).tolist()
        return [Tail(row[0], row[1], riding) for row, riding in zip(tails[:, :2].tolist(), carried, strict=True)]

    def _tell(self, number: int, bucket: Bucket, waiting: float) -> None:
        """Draws one bucket's way through this backward."""
        assert self.group.timeline is not None
        assert bucket.pending is not None
        now, add = time.perf_counter(), self.group.timeline.add
        track = f"bucket {number}"
        names = [slot.name for slot in bucket.slots]
        about = {"step": self.group.pulse.step + 1, "parameters": names, "bytes": bucket.flat.nbytes}
        add(track, "ready", bucket.began or bucket.ready, bucket.ready, **about)
        start, end = bucket.pending.adding or (now, now)
        add(track, "queued", bucket.ready, start, **about)
        if end > start:
            add(track, "reduced", start, end, **about)
        add("waiting for buckets", f"waited for {bucket.what}", waiting, now, bucket=number, **about)
        bucket.began = 0.0

    def _end_broken_off(self) -> None:
        """A backward that raised, and a script that went on: what it had sent is still under way, and the others would
        write its sum over what comes next."""
        for bucket in self.all():
            if bucket.pending is not None:
                bucket.pending.finish(bucket.what)
                bucket.pending = None

    def break_off(self) -> set[int]:
        """A backward raised, on every worker, and not all had sent as many buckets: each sends what the others have
        sent, so that all sums come to their end. Gives the slots that any worker has a gradient for, of no use."""
        mine = 0 if self._keeping else self._sent
        told = torch.tensor([mine, *map(self.has_reached, range(len(self.slots)))])
        most, *flags = self.group.gather_vectors(told, "how far a backward came").max(0).values.tolist()
        for bucket in self._sending[mine:most]:
            self._send(bucket)
        self._end_broken_off()
        self._kept.clear()
        self._sent, self._keeping = 0, False
        return {index for index, flag in enumerate(flags) if flag}

    def has_reached(self, index: int) -> bool:
        """Whether this slot's gradient has come in the backward that has just ended."""
        return index in self._kept if self._keeping else self.slots[index].fired

    # -- filling and sending ---------------------------------------------------------------------------------------

    def _tail(self, loss: float, share: float, riders: Sequence[int]) -> torch.Tensor:
        first = 2 + len(riders)
        tail = torch.zeros(first + len(self.slots), dtype=torch.float64)
        tail[0], tail[1] = loss, share
        tail[2:first].view(torch.int64).copy_(torch.tensor(riders, dtype=torch.int64))  # their bits: only moved
        for index in self._order:
            parameter = self.slots[index].parameter()
            tail[first + index] = ODD if parameter is not None and _odd(parameter) else REACHED
        return tail

    @torch.no_grad()
    def _fill(self, slot: Slot, parameter: torch.Tensor) -> None:
        """Writes a gradient into its place, divided by the number of workers, and lets it live there."""
        assert slot.view is not None
        assert parameter.grad is not None
        torch.mul(parameter.grad, 1.0 / self.group.world, out=slot.view)
        if parameter.grad is not slot.view:
            parameter.grad = slot.view
        slot.filled = True
        if slot.bucket is not None and not slot.bucket.began:
            slot.bucket.began = time.perf_counter()

    @torch.no_grad()
    def _complete(self, bucket: Bucket, reached: set[int]) -> None:
        """Fills what no hook has filled: late gradients, earlier ones, and places that only other workers reached."""
        for slot in bucket.slots:
            parameter = slot.parameter()
            if slot.filled or slot.view is None:
                continue
            if parameter is not None and parameter.grad is not None and not _odd(parameter):
                self._fill(slot, parameter)
                continue
            slot.view.zero_()
            if parameter is not None and id(slot) in reached:
                parameter.grad = slot.view

    def _send(self, bucket: Bucket) -> None:
        if self.watcher is not None:
            self.watcher.sending(bucket.flat)
        bucket.ready = time.perf_counter()
        bucket.pending = self.group.start_all_reduce(bucket.flat, bucket.shared, key=bucket.key, shapes=bucket.shapes)

    # -- placing ---------------------------------------------------------------------------------------------------

    def _line_up(self, new: list[int]) -> None:
        """Parameters that this backward is the first of its kind to reach: their buckets are sent after the others, in
        the order in which rank 0's last gradients for them came."""
        if not new:
            return
        came = self.group.gather_objects([i for i in self._order if i in set(new)], "the order of gradients")[0]
        order = came + [index for index in new if index not in set(came)]
        for bucket in dict.fromkeys(self.slots[index].bucket for index in order):
            if bucket is not None:  # built for another place in the script
                self._make_fit(bucket)
        self._place([self.slots[index] for index in order if self.slots[index].bucket is None])
        lined_up = dict.fromkeys(bucket for i in reversed(order) if (bucket := self.slots[i].bucket) is not None)
        for bucket in reversed(lined_up):
            bucket.pending = None
            self._sending.append(bucket)

    def _place(self, new: list[Slot]) -> None:
        """Builds buckets for parameters that have none, neighbours as they come."""
        alike: dict[tuple[torch.dtype, torch.device], list[Slot]] = {}
        for slot in new:
            parameter = slot.parameter()
            if parameter is not None:
                alike.setdefault((parameter.dtype, parameter.device), []).append(slot)
        for slots in alike.values():
            for chunk in self._chunks(slots):
                self._build(chunk)

    def _chunks(self, slots: list[Slot]) -> Iterator[list[Slot]]:
        limit, chunk, filled = self.first, list[Slot](), 0
        for slot in slots:
            parameter = slot.parameter()
            size = parameter.numel() * parameter.element_size() if parameter is not None else 0
            if chunk and filled + size > limit:
                yield chunk
                limit, chunk, filled = self.size, [], 0
            chunk.append(slot)
            filled += size
        yield chunk

    def _build(self, slots: list[Slot]) -> None:
        parameters = [p for slot in slots if (p := slot.parameter()) is not None]
        total = sum(p.numel() for p in parameters)
        dtype, device = parameters[0].dtype, parameters[0].device
        shared = self.group.allocate(total, dtype) if device.type == "cpu" else None
        flat = shared.flat if shared is not None else torch.zeros(total, dtype=dtype, device=device)
        names = [slot.name for slot in slots]
        what = (
            f"the gradient of {names[0]}"
            if len(names) == 1
            else f"gradients of {names[0]} … {names[-1]} ({len(names)})"
        )
        shapes = tuple(parameter.shape for parameter in parameters)
        bucket = Bucket(slots, flat, shared, next(self._keys), shapes, what=what)
        for slot in slots:
            slot.bucket = bucket
        self._lay_views(bucket)

    def _lay_views(self, bucket: Bucket) -> None:
        at = 0
        for slot in bucket.slots:
            parameter = slot.parameter()
            if parameter is not None:
                slot.view = _laid_like(parameter, bucket.flat[at : at + parameter.numel()])
                slot.address, slot.strides = slot.view.data_ptr(), parameter.stride()
                at += parameter.numel()
        bucket.uses = _uses(bucket.flat)

    def _make_fit(self, bucket: Bucket) -> None:
        """Before its memory is used again."""
        if self._still_fits(bucket):
            self._leave_to_script(bucket)
        else:
            self._dissolve(bucket)

    def _still_fits(self, bucket: Bucket) -> bool:
        """Whether its parameters are still there, and still of the shape, dtype and device that it was built for.
        `model.half()` and `p.grad.data = …` give a view other memory: then it is no part of the bucket any more."""
        return all(
            (p := slot.parameter()) is not None
            and slot.view is not None
            and slot.view.data_ptr() == slot.address
            and p.shape == slot.view.shape
            and p.stride() == slot.strides
            and p.dtype == bucket.flat.dtype
            and p.device == bucket.flat.device
            for slot in bucket.slots
        )

    def _dissolve(self, bucket: Bucket) -> None:
        """The model was converted, moved or dropped: what is left of it is placed anew when next reached."""
        for slot in bucket.slots:
            slot.bucket = slot.view = None
        for buckets in self._kinds.values():
            if bucket in buckets:
                buckets.remove(bucket)

    @torch.no_grad()
    def _leave_to_script(self, bucket: Bucket) -> None:
        """A gradient that the script kept from an earlier step is left to it: the bucket takes new memory."""
        parted = [s for s in bucket.slots if (p := s.parameter()) is not None and p.grad is not s.view]
        # 2: the slot itself, and the argument of getrefcount.
        if not parted or not (any(sys.getrefcount(s.view) > 2 for s in parted) or _uses(bucket.flat) > bucket.uses):
            return
        old = [slot.view for slot in bucket.slots]
        if bucket.shared is not None:
            bucket.shared.renew()
            bucket.flat = bucket.shared.flat
        else:
            bucket.flat = torch.zeros_like(bucket.flat)
        self._lay_views(bucket)
        for slot, view in zip(bucket.slots, old, strict=True):
            parameter = slot.parameter()
            if parameter is not None and view is not None and slot.view is not None and parameter.grad is view:
                slot.view.copy_(view)
                parameter.grad = slot.view


def _odd(parameter: torch.Tensor) -> bool:
    grad = parameter.grad
    return grad is not None and (grad.layout is not torch.strided or grad.requires_grad)


def _laid_like(parameter: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of `flat` whose numbers lie in the order of the parameter's (channels last): fused optimizers walk through
    both memories alike."""
    order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    if parameter.is_contiguous() or not parameter.detach().permute(order).is_contiguous():
        return flat.view(parameter.shape)
    return flat.as_strided(parameter.shape, parameter.stride())


def _uses(flat: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(flat.untyped_storage()._cdata))
