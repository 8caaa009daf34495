"""Gradient buckets: flat memory that holds gradients; the all-reduce of a full bucket overlaps with backward.

The first backward from a line of the script shows which parameters that backward reaches and in which order. From the
second backward on, the all-reduce of a bucket starts when its last gradient has been written. A small last message, the
tail, carries the loss and the caller's numbers, and tells every worker which parameters were reached on any worker. A
parameter that only another worker's slice used gets its gradient here, too; a parameter that no worker used keeps None.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch

from paceline.comm.channels import Pending
from paceline.comm.group import Group
from paceline.comm.memory.reductions import Shared
from paceline.errors import ScriptError
from paceline.torch_private import uses_of


@dataclass(eq=False, slots=True)
class BucketSlot:
    """The place of one parameter's gradient in a bucket."""

    parameter: weakref.ref[torch.Tensor]
    name: str
    bucket: Bucket | None = None
    view: torch.Tensor | None = None
    address: int = 0  # data pointer of the view when it was created
    strides: tuple[int, ...] = ()  # strides of the parameter when the view was created
    fired: bool = False  # the gradient hook has run in this backward
    filled: bool = False  # the gradient has been written into the bucket


@dataclass(eq=False, slots=True)
class Bucket:
    """Gradients of one dtype and device in one flat tensor, in the order of the first backward."""

    slots: list[BucketSlot]
    flat: torch.Tensor
    shared: Shared | None = None  # the memory of `flat`, if it is shared between workers
    key: int = 0
    shapes: tuple[torch.Size, ...] = ()
    uses: int = 0  # storage references held by Paceline: more mean that the script also holds the memory
    missing: int = 0  # gradients not yet written in this backward
    pending: Pending | None = None
    what: str = "gradients"  # shown in messages about a wait for this bucket
    began: float = 0.0  # time of the first gradient of this backward
    ready: float = 0.0  # time at which its all-reduce started


class BucketTail(NamedTuple):
    """The small message that one worker sends at the end of a backward."""

    loss: float
    share: float  # this worker's fraction of the batch
    riders: list[int]  # integers of the caller


FIRST = 1 << 20  # bytes: a small first bucket, so that communication starts early
SIZE = 25 << 20  # bytes of every other bucket
REACHED, ODD = 1.0, 2.0  # in the tail: has a gradient; has a gradient that cannot live in a bucket


class Watcher(Protocol):
    """Sees gradients before and after the all-reduce. A watcher must not keep references to gradients."""

    def sending(self, flat: torch.Tensor) -> None:
        """Called before the all-reduce, with a bucket of this worker's own gradients divided by the number of
        workers."""

    def arrived(self, flats: list[torch.Tensor], whole: bool) -> None:
        """Called with all summed buckets of a backward. `whole`: the buckets hold all gradients of that backward."""


class Buckets:
    """The gradients of all adopted parameters. In each backward call `begin`, `ready` per gradient, then `finish`."""

    def __init__(
        self, group: Group, average: Callable[[torch.Tensor], None], *, size: int = SIZE, first: int = FIRST
    ) -> None:
        """`average` replaces a gradient that cannot live in a bucket (sparse, or with an autograd graph) by the global
        gradient; every worker calls `average` for the same parameters in the same order."""
        self.group, self._average, self.size, self.first = group, average, size, first
        self.slots: list[BucketSlot] = []
        self.watcher: Watcher | None = None
        self.waits: Waits | None = None  # measures the time spent waiting for sums
        self._keys = itertools.count()
        self._late: set[int] = set()  # slots whose hook ran more than once in a backward: sent at the end of backward
        self._order: list[int] = []  # slots in the order of their gradients in this backward
        self._kinds: dict[int, list[Bucket]] = {}  # by line of the script: its buckets in the order of sending
        self._sending: list[Bucket] = []
        self._sent = 0
        self._keeping = False
        self._kept: dict[int, None] = {}  # slots whose gradients were kept back, in order

    def adopt(self, parameter: torch.Tensor, name: str = "") -> int:
        """Adds a parameter and returns its slot index. All workers adopt the parameters in the same order."""
        self.slots.append(BucketSlot(weakref.ref(parameter), name or f"parameter {len(self.slots)}"))
        return len(self.slots) - 1

    def begin(self, site: int) -> None:
        """A backward begins at this line of the script."""
        self._finish_pending()
        self._sending = self._kinds.setdefault(site, [])
        self._order, self._sent, self._keeping = [], 0, False
        for slot in self.slots:
            slot.fired = slot.filled = False
        for bucket in list(self._sending):
            bucket.missing, bucket.pending, bucket.began = len(bucket.slots), None, 0.0
            self._make_fit(bucket)

    def all(self) -> list[Bucket]:
        """The buckets of all lines of the script, each bucket once."""
        return list(dict.fromkeys(bucket for buckets in self._kinds.values() for bucket in buckets))

    def resize(self, size: int) -> None:
        """Sets the bucket size in bytes from the next backward on. Every worker calls it, between two backwards."""
        if size != self.size:
            self.size = size
            for bucket in self.all():
                self._dissolve(bucket)

    def keep_back(self) -> None:
        """A backward begins whose gradients are not sent yet: the next backward that is not kept back sends them."""
        self._finish_pending()
        self._keeping = True

    def ready(self, index: int, parameter: torch.Tensor) -> None:
        """A parameter's gradient is complete. Called by the gradient hook, in backward."""
        if self._keeping:
            self._kept[index] = None
            return
        slot = self.slots[index]
        bucket = slot.bucket
        if slot.fired:
            self._late.add(index)
            if bucket is not None and bucket.pending is not None:
                raise ScriptError(
                    f"The gradient of {slot.name} came a second time in one backward, after the gradient had been sent "
                    "to the other workers.",
                    advice="If checkpointed segments share this parameter, use checkpoint(…, use_reentrant=False).",
                )
            return
        slot.fired = True
        self._order.append(index)
        if bucket is None or index in self._late or bucket not in self._sending or _is_unbucketable(parameter):
            return
        self._fill(slot, parameter)
        bucket.missing -= 1
        while self._sent < len(self._sending) and not self._sending[self._sent].missing:
            self._send(self._sending[self._sent])
            self._sent += 1
        self.group.progress()

    def finish(self, loss: float, share: float, riders: Sequence[int] = ()) -> list[BucketTail]:
        """Sends the remaining buckets and waits for all sums. Afterwards every adopted parameter that was reached on
        any worker has the global gradient. Returns each worker's tail. `riders` are integers of the caller that travel
        in the tail; their number is the same on each worker."""
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
                with nullcontext() if self.waits is None else self.waits.one():
                    bucket.pending.finish(bucket.what)
                if self.group.timeline is not None:
                    self._record_timeline(number, bucket, began)
                bucket.pending = None
                for slot in bucket.slots:
                    slot.filled = False  # sent again in this backward, it is averaged again
        if self.watcher is not None:
            self.watcher.arrived(flats, ODD not in state)
        carried = tails[:, 2:first].contiguous().view(torch.int64).tolist()
        return [BucketTail(row[0], row[1], riding) for row, riding in zip(tails[:, :2].tolist(), carried, strict=True)]

    def _record_timeline(self, number: int, bucket: Bucket, waiting: float) -> None:
        """Adds the spans of one bucket in this backward to the timeline."""
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

    def _finish_pending(self) -> None:
        """Finishes the sums of a backward that raised, if the script went on: otherwise peers would write an old sum
        over new gradients."""
        for bucket in self.all():
            if bucket.pending is not None:
                bucket.pending.finish(bucket.what)
                bucket.pending = None

    def break_off(self) -> set[int]:
        """A backward raised on every worker, and the workers may have sent different numbers of buckets. Each worker
        sends the buckets that its peers have sent, so that all sums finish. Returns the slots that have an unusable
        gradient on any worker."""
        mine = 0 if self._keeping else self._sent
        told = torch.tensor([mine, *map(self.has_reached, range(len(self.slots)))], device="cpu")
        most, *flags = self.group.gather_vectors(told, "the buckets of a failed backward").max(0).values.tolist()
        for bucket in self._sending[mine:most]:
            self._send(bucket)
        self._finish_pending()
        self._kept.clear()
        self._sent, self._keeping = 0, False
        return {index for index, flag in enumerate(flags) if flag}

    def forget(self) -> None:
        """A worker was lost, and the backward begins anew: what was started is not waited for."""
        for bucket in self.all():
            bucket.pending = None
        self._kept.clear()
        self._sent = 0

    def has_reached(self, index: int) -> bool:
        """Whether this slot's gradient came in the backward that has just ended."""
        return index in self._kept if self._keeping else self.slots[index].fired

    # -- filling and sending ---------------------------------------------------------------------------------------

    def _tail(self, loss: float, share: float, riders: Sequence[int]) -> torch.Tensor:
        first = 2 + len(riders)
        tail = torch.zeros(first + len(self.slots), dtype=torch.float64, device="cpu")
        tail[0], tail[1] = loss, share
        tail[2:first].view(torch.int64).copy_(
            torch.tensor(riders, dtype=torch.int64, device="cpu")
        )  # bits are copied, not converted
        for index in self._order:
            parameter = self.slots[index].parameter()
            tail[first + index] = ODD if parameter is not None and _is_unbucketable(parameter) else REACHED
        return tail

    @torch.no_grad()
    def _fill(self, slot: BucketSlot, parameter: torch.Tensor) -> None:
        """Writes a gradient, divided by the number of workers, into its view of the bucket and binds `.grad` to the
        view."""
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
        """Fills the slots that no hook has filled: late gradients, kept-back gradients, and zeros for parameters that
        only other workers reached."""
        for slot in bucket.slots:
            parameter = slot.parameter()
            if slot.filled or slot.view is None:
                continue
            if parameter is not None and parameter.grad is not None and not _is_unbucketable(parameter):
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
        """Appends the buckets of parameters that no earlier backward from this line reached. These buckets are sent
        last, in the order of the last gradient of each bucket on rank 0."""
        if not new:
            return
        came = self.group.gather_objects([i for i in self._order if i in set(new)], "the order of gradients")[0]
        order = came + [index for index in new if index not in set(came)]
        for bucket in dict.fromkeys(self.slots[index].bucket for index in order):
            if bucket is not None:  # built for another line of the script
                self._make_fit(bucket)
        self._place([self.slots[index] for index in order if self.slots[index].bucket is None])
        lined_up = dict.fromkeys(bucket for i in reversed(order) if (bucket := self.slots[i].bucket) is not None)
        for bucket in reversed(lined_up):
            bucket.pending = None
            self._sending.append(bucket)

    def _place(self, new: list[BucketSlot]) -> None:
        """Builds buckets for parameters without a bucket, in the given order."""
        groups: dict[tuple[torch.dtype, torch.device], list[BucketSlot]] = {}
        for slot in new:
            parameter = slot.parameter()
            if parameter is not None:
                groups.setdefault((parameter.dtype, parameter.device), []).append(slot)
        for slots in groups.values():
            for chunk in self._chunks(slots):
                self._build(chunk)

    def _chunks(self, slots: list[BucketSlot]) -> Iterator[list[BucketSlot]]:
        limit, chunk, filled = self.first, list[BucketSlot](), 0
        for slot in slots:
            parameter = slot.parameter()
            size = parameter.numel() * parameter.element_size() if parameter is not None else 0
            if chunk and filled + size > limit:
                yield chunk
                limit, chunk, filled = self.size, [], 0
            chunk.append(slot)
            filled += size
        yield chunk

    def _build(self, slots: list[BucketSlot]) -> None:
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
                # `data`: for autograd it is no view, so that a script may call `p.grad.detach_()`.
                slot.view = laid_like(parameter, bucket.flat[at : at + parameter.numel()]).data
                slot.address, slot.strides = slot.view.data_ptr(), parameter.stride()
                at += parameter.numel()
        bucket.uses = _uses(bucket.flat)

    def _make_fit(self, bucket: Bucket) -> None:
        """Prepares a bucket for its next use: gives it new memory if the script holds the old, or dissolves it."""
        if self._still_fits(bucket):
            self._leave_to_script(bucket)
        else:
            self._dissolve(bucket)

    def _still_fits(self, bucket: Bucket) -> bool:
        """Whether all parameters of the bucket exist and still have the shape, dtype and device that the bucket was
        built for. `model.half()` and `p.grad.data = …` move a view to other memory, outside the bucket."""
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
        """Removes a bucket whose model was converted, moved or dropped. Parameters that still exist get a new bucket
        when a backward next reaches them."""
        for slot in bucket.slots:
            slot.bucket = slot.view = None
        for buckets in self._kinds.values():
            if bucket in buckets:
                buckets.remove(bucket)

    @torch.no_grad()
    def _leave_to_script(self, bucket: Bucket) -> None:
        """Gives the bucket new memory if the script keeps a gradient of an earlier step, so that the script's gradient
        does not change."""
        unbound = [s for s in bucket.slots if (p := s.parameter()) is not None and p.grad is not s.view]
        # 2 references: the slot itself, and the argument of getrefcount.
        if not unbound or not (any(sys.getrefcount(s.view) > 2 for s in unbound) or _uses(bucket.flat) > bucket.uses):
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


def _is_unbucketable(parameter: torch.Tensor) -> bool:
    grad = parameter.grad
    return grad is not None and (grad.layout is not torch.strided or grad.requires_grad)


def laid_like(parameter: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of `flat` with the memory format of the parameter (such as channels_last): fused optimizers need the same
    element order in both."""
    order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
    if parameter.is_contiguous() or not parameter.detach().permute(order).is_contiguous():
        return flat.view(parameter.shape)
    return flat.as_strided(parameter.shape, parameter.stride())


def _uses(flat: torch.Tensor) -> int:
    return uses_of(flat.untyped_storage())


# -- moments of a run, on the clock that counts -----------------------------------------------------------------------
# A host that puts work on a GPU does not wait for it: its own clock says how long the calls took, not the work.


Mark = Any  # a number of seconds, or a CUDA event


def mark() -> Mark:
    """This moment: of the GPU's current stream, if the process uses a GPU."""
    if not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(marks: Sequence[Mark]) -> list[float]:
    """The seconds from each mark to the next. Waits for the GPU's last mark."""
    if marks and isinstance(marks[-1], torch.cuda.Event):
        marks[-1].synchronize()
    return [_between(start, end) for start, end in pairwise(marks)]


def _between(start: Mark, end: Mark) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    mixed = isinstance(start, float) or isinstance(end, float)  # the script took up its GPU in between
    return 0.0 if mixed else start.elapsed_time(end) / 1000.0


class Waits:
    """Adds up waits. On a GPU a wait is the time in which the current stream stands still."""

    def __init__(self, clock: Callable[[], Mark] = mark) -> None:
        self._clock, self._spans = clock, list[tuple[Mark, Mark]]()

    @contextmanager
    def one(self) -> Iterator[None]:
        start = self._clock()
        yield
        self._spans.append((start, self._clock()))

    def seconds(self) -> float:
        return sum(sum(seconds_between(span)) for span in self._spans)
