"""Rank 0's table of operations: which ranks have submitted them, and what all ranks do next.

An operation is ready when every rank of its process set has submitted it under its name; ranks that have joined count
as if they had, for allreduce. The first time, ranks send the whole request, which is compared (`compare`). After
that the operation has a slot: ranks send its bit, and what is ready is the bitwise AND of what the ranks have sent.

A slot is given up if a rank submits the name with another shape, or to make room. Bits that were under way at that time
are still understood: the slot is given to another name only after every rank has heard of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from paceline.horovod.engine.messages import (
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    CACHED,
    OP_NAMES,
    REDUCESCATTER,
    REMOVE_SET,
    Agreed,
    Ready,
    Request,
    Response,
    bits_from_bytes,
    bits_to_bytes,
    slots_of,
)


class Slot:
    """An operation in the response cache, with the request of each rank."""

    __slots__ = ("agreed", "requests")

    def __init__(self, agreed: Agreed, requests: dict[int, Request]) -> None:
        self.agreed, self.requests = agreed, requests


class Pending:
    """A name that not all ranks have submitted yet."""

    __slots__ = ("requests", "since")

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.since = time.monotonic()


class Coordinator:
    """Used by rank 0's background thread only: `accept` what ranks say, then `decide`."""

    def __init__(self, size: int, capacity: int) -> None:
        self.size, self.capacity = size, capacity
        self.sets: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.pending: dict[str, Pending] = {}
        self.slots: dict[int, Slot] = {}
        self.masks = [0] * size  # bits that each rank has sent and that are not ready
        self.joined: list[int] = []  # in the order of joining
        self.ended = ""
        self.on_arrival: Callable[[int, Request], None] | None = None  # told of each submission, for the timeline
        self._names: dict[str, int] = {}
        self._set_bits: dict[int, int] = {0: 0}
        self._joinable = 0  # bits of allreduces
        self._recent = 0  # bits that were used since the last round of evictions
        self._fresh = 0  # bits that the next response makes known
        self._unheard: dict[int, tuple[int, Slot]] = {}  # given up at a response that not all ranks have heard
        self._evicted: list[int] = []
        self._free = list(range(capacity - 1, -1, -1))
        self._heard = [0] * size
        self._touched: list[str] = []
        self._number = 0
        self._next_set = 1

    def accept(self, rank: int, ready: Ready) -> None:
        """Takes note of what a rank has submitted."""
        self._heard[rank] = ready.heard
        bits = bits_from_bytes(ready.bits)
        for slot, (_, old) in self._unheard.items():
            if bits >> slot & 1:
                bits &= ~(1 << slot)
                self._note(rank, old.requests[rank])
        self.masks[rank] |= bits
        if self.on_arrival is not None:
            for request in [*ready.requests, *(self.slots[slot].agreed.request for slot in slots_of(bits))]:
                self.on_arrival(rank, request)
        for request in ready.requests:
            if (found := self._names.get(request.key)) is not None:
                self._give_up(found)
            self._note(rank, request)
        if ready.joins and rank not in self.joined:
            self.joined.append(rank)
            self._touched.extend(self.pending)
        if ready.leaves and not self.ended:
            self.ended = "shutdown"

    def decide(self) -> Response | None:
        """What all ranks do next; None if that is nothing."""
        if self._unheard:
            self._free_slots()
        bits = self._ready_bits()
        agreed = self._agree()
        last = -1
        if len(self.joined) == self.size:
            last, self.joined = self.joined[-1], []
        if not (bits or agreed or self.ended or last >= 0):
            return None
        evicted, self._evicted = self._evicted, []
        self._number += 1
        self._fresh = 0
        return Response(self._number, bits_to_bytes(bits), agreed, evicted, last, self.ended)

    @property
    def has_pending(self) -> bool:
        """Whether a rank has submitted what others have not."""
        return bool(self.pending) or any(self.masks)

    def missing(self) -> dict[str, tuple[float, list[int]]]:
        """Operations that some ranks have submitted and others have not: seconds since the first one (of cached
        operations: 0, as they carry no time), and the ranks that are missing."""
        now, found = time.monotonic(), {}
        for pending in self.pending.values():
            first = next(iter(pending.requests.values()))
            members = self.sets.get(first.process_set, ())
            absent = [rank for rank in members if rank not in pending.requests and rank not in self.joined]
            found[first.name] = now - pending.since, absent
        every = 0
        for mask in self.masks:
            every |= mask
        for number in slots_of(every):
            request = self.slots[number].agreed.request
            absent = [r for r in self.sets[request.process_set] if not self.masks[r] >> number & 1]
            found[request.name] = 0.0, [rank for rank in absent if rank not in self.joined]
        return found

    # -- cached operations -----------------------------------------------------------------------------------------

    def _ready_bits(self) -> int:
        if self.joined:
            self._uncache_what_cannot_be_joined()
        ready = 0
        for number, members in self.sets.items():
            common, active = self._set_bits[number], False
            if not common:
                continue
            for rank in members:
                if rank in self.joined:
                    common &= self.masks[rank] | self._joinable
                else:
                    common &= self.masks[rank]
                    active = True
            if active:
                ready |= common
        if ready:
            self._recent |= ready
            self.masks = [mask & ~ready for mask in self.masks]
        return ready

    def _uncache_what_cannot_be_joined(self) -> None:
        """A joined rank would never send the bit of a broadcast; as a request, it is answered with an error."""
        every = 0
        for mask in self.masks:
            every |= mask
        for slot in slots_of(every & ~self._joinable):
            if set(self.joined) & set(self.sets[self.slots[slot].agreed.request.process_set]):
                self._give_up(slot)

    def _give_up(self, number: int) -> None:
        """Ends a slot. Bits that ranks have sent become requests."""
        slot = self.slots.pop(number)
        bit = 1 << number
        request = slot.agreed.request
        del self._names[request.key]
        self._set_bits[request.process_set] &= ~bit
        self._joinable &= ~bit
        self._recent &= ~bit
        for rank, mask in enumerate(self.masks):
            if mask & bit:
                self.masks[rank] = mask & ~bit
                self._note(rank, slot.requests[rank])
        self._unheard[number] = self._number + 1, slot
        self._evicted.append(number)

    def _free_slots(self) -> None:
        heard = min(self._heard)
        for number in [number for number, (said, _) in self._unheard.items() if said <= heard]:
            del self._unheard[number]
            self._free.append(number)

    def _take_slot(self, agreed: Agreed, requests: dict[int, Request]) -> int:
        """A free slot, or -1. If there is none, one that was not used lately is given up, for the next time."""
        if not self._free:
            if self.capacity and not self._unheard:
                self._make_room()
            return -1
        number = self._free.pop()
        request = agreed.request
        self.slots[number] = Slot(agreed, requests)
        self._fresh |= 1 << number
        self._names[request.key] = number
        self._set_bits[request.process_set] |= 1 << number
        if request.kind == ALLREDUCE:
            self._joinable |= 1 << number
        return number

    def _make_room(self) -> None:
        busy = self._fresh  # no rank could understand a slot that is made and given up by one response
        for mask in self.masks:
            busy |= mask
        idle = [number for number in self.slots if not (busy | self._recent) >> number & 1]
        if not idle:
            self._recent = 0
        for number in idle[: max(1, self.capacity // 8)]:
            self._give_up(number)

    # -- requests --------------------------------------------------------------------------------------------------

    def _note(self, rank: int, request: Request) -> None:
        pending = self.pending.get(request.key)
        if pending is None:
            pending = self.pending[request.key] = Pending()
        pending.requests[rank] = request
        self._touched.append(request.key)

    def _agree(self) -> list[Agreed]:
        found: list[Agreed] = []
        touched, self._touched = self._touched, []
        for key in touched:
            pending = self.pending.get(key)
            if pending is None:
                continue
            first = next(iter(pending.requests.values()))
            members = self.sets.get(first.process_set, ())
            if any(rank not in pending.requests and rank not in self.joined for rank in members):
                continue
            del self.pending[key]
            agreed = compare(pending.requests, members, [rank for rank in self.joined if rank in members])
            if not agreed.error:
                agreed = self._settle(agreed, pending.requests, members)
            found.append(agreed)
        return found

    def _settle(self, agreed: Agreed, requests: dict[int, Request], members: tuple[int, ...]) -> Agreed:
        request = agreed.request
        if request.kind == ADD_SET:
            return self._add_set(request)
        if request.kind == REMOVE_SET:
            self._remove_set(request.root)
        elif request.repeats and request.kind in CACHED and len(requests) == len(members):
            # A slot holds the sizes of all ranks; of ranks that have joined none are known.
            return Agreed(request, agreed.sizes, "", self._take_slot(agreed, requests))
        return agreed

    def _add_set(self, request: Request) -> Agreed:
        """The new set's number is told as the slot. -1: a set of these ranks exists."""
        if request.ranks in self.sets.values():
            return Agreed(request)
        number, self._next_set = self._next_set, self._next_set + 1
        self.sets[number], self._set_bits[number] = request.ranks, 0
        return Agreed(request, slot=number)

    def _remove_set(self, number: int) -> None:
        for slot in slots_of(self._set_bits.get(number, 0)):
            self._give_up(slot)
        self.sets.pop(number, None)
        self._set_bits.pop(number, None)


# -- whether the requests of all ranks agree --------------------------------------------------------------------------


REDUCES = (ALLREDUCE, REDUCESCATTER)


def compare(requests: dict[int, Request], members: Sequence[int], joined: Sequence[int]) -> Agreed:
    """`requests` by rank, of all ranks of the process set except those that have `joined`."""
    ranks = sorted(requests)
    first = requests[ranks[0]]
    error = ""
    for rank in ranks[1:]:
        if error := _difference(first, requests[rank], ranks[0], rank):
            break
    if not error:
        error = _cannot_be_joined(first, joined) or _alone_wrong(first, members)
    if error:
        return Agreed(first, error=error)
    if first.kind == ALLGATHER:
        return Agreed(first, tuple(tuple(shape[0] for _, shape in requests[r].parts) for r in ranks))
    if first.kind == ALLTOALL:
        return Agreed(first, tuple(requests[r].splits for r in ranks))
    return Agreed(first)


def _difference(one: Request, other: Request, rank: int, peer: int) -> str:
    """What two ranks ask for differently; "" if nothing that matters."""
    name, kind = one.name, one.kind

    def mismatch(what: str, first: object, second: object) -> str:
        return f"Mismatched {what} for the tensor {name}: rank {rank} has {first}, but rank {peer} has {second}."

    if kind != other.kind:
        return mismatch("operations", kind, other.kind)
    if one.process_set != other.process_set:
        return mismatch("process sets", one.process_set, other.process_set)
    if one.ranks != other.ranks:
        return mismatch("process sets", list(one.ranks), list(other.ranks))
    if len(one.parts) != len(other.parts):
        return mismatch(f"{kind} groups", f"{len(one.parts)} tensors", f"{len(other.parts)} tensors")
    for (dtype, shape), (dtype2, shape2) in zip(one.parts, other.parts, strict=True):
        if dtype != dtype2:
            return mismatch("data types", dtype, dtype2)
        if len(shape) != len(shape2) and kind in (ALLGATHER, ALLTOALL):
            return mismatch(f"{kind} tensor ranks", f"{len(shape)} dimensions", f"{len(shape2)} dimensions")
        from_dim = 1 if kind in (ALLGATHER, ALLTOALL) else 0
        if shape[from_dim:] != shape2[from_dim:]:
            return mismatch(f"{kind} tensor shapes", list(shape), list(shape2))
    if one.device != other.device:
        return mismatch("devices", one.device, other.device)
    if kind in REDUCES and one.op != other.op:
        return mismatch("reduce operations", OP_NAMES[one.op], OP_NAMES[other.op])
    if kind in REDUCES and (one.prescale, one.postscale) != (other.prescale, other.postscale):
        return mismatch(
            "prescale and postscale factors",
            f"{one.prescale:g} and {one.postscale:g}",
            f"{other.prescale:g} and {other.postscale:g}",
        )
    if one.root != other.root:
        return mismatch("root ranks", one.root, other.root)
    return ""


def _cannot_be_joined(request: Request, joined: Sequence[int]) -> str:
    if not joined or request.kind in (ALLREDUCE, BARRIER):
        return ""
    return (
        f"{request.kind.capitalize()} of the tensor {request.name} is not supported with join: "
        f"rank {joined[0]} has joined, and could only contribute zeros to an allreduce."
    )


def _alone_wrong(request: Request, members: Sequence[int]) -> str:
    """What is wrong though all ranks ask for the same."""
    if request.kind == BROADCAST and request.root not in members:
        return f"The root rank {request.root} of broadcast {request.name} is not in the process set {list(members)}."
    if request.kind in (ALLGATHER, ALLTOALL, REDUCESCATTER) and any(not shape for _, shape in request.parts):
        return f"The tensor {request.name} of {request.kind} is a scalar: it has no first dimension."
    if request.kind == REDUCESCATTER and OP_NAMES[request.op] == "Adasum":
        return f"Reducescatter of the tensor {request.name} does not support the op Adasum."
    return ""
