"""Compares the requests of all ranks for one name: what they agree on, or the error that every rank raises."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.horovod.engine.messages import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    OP_NAMES,
    REDUCESCATTER,
    Agreed,
    Request,
)

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
