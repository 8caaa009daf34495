"""What the workers tell each other to agree on the next operations: msgspec structs, encoded as MessagePack.

Every worker sends `Ready` to rank 0, which answers all workers with `Response`s. Operations that all workers have made
before have a slot in the response cache: they are one bit in either message.
"""

from __future__ import annotations

import msgspec

AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = range(6)
OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")

ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL = "allreduce", "allgather", "broadcast", "alltoall"
REDUCESCATTER, BARRIER, ADD_SET, REMOVE_SET = "reducescatter", "barrier", "add_process_set", "remove_process_set"
CACHED = {ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER}


def key_of(name: str, process_set: int) -> str:
    """The same name may be in flight in several process sets at once."""
    return f"{name}\0{process_set}" if process_set else name


class Request(msgspec.Struct, array_like=True, frozen=True):
    """An operation as one rank has submitted it. A grouped operation is one request with several parts."""

    name: str
    kind: str
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()  # dtype and shape of each tensor
    op: int = SUM
    root: int = -1
    process_set: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    device: str = "cpu"
    splits: tuple[int, ...] = ()  # alltoall: rows for each rank
    ranks: tuple[int, ...] = ()  # of a process set that is added
    repeats: bool = False  # the user gave the name, so that it may come again

    @property
    def key(self) -> str:
        return key_of(self.name, self.process_set)


class Ready(msgspec.Struct, array_like=True, frozen=True):
    """From a rank: operations that it has submitted since its last message."""

    bits: bytes  # slots of the response cache, as a little-endian number
    requests: list[Request]
    heard: int  # number of the last response that this rank has carried out
    joins: bool = False
    leaves: bool = False


class Agreed(msgspec.Struct, array_like=True, frozen=True):
    """An operation that every rank has submitted. `error`: they cannot be done together, and every rank raises it."""

    request: Request  # of the first rank
    sizes: tuple[tuple[int, ...], ...] = ()  # by rank of the process set: rows of each part, or splits
    error: str = ""
    slot: int = -1  # in the response cache from now on; -1: not cached


class Response(msgspec.Struct, array_like=True, frozen=True):
    """From rank 0: what all ranks do next, in this order: `bits` by slot, then `agreed`."""

    number: int
    bits: bytes
    agreed: list[Agreed]
    evicted: list[int] = []  # slots that are no longer valid
    last_joined: int = -1  # all ranks have joined, this one last
    ended: str = ""  # why Horovod ends on all ranks
    fusion_threshold: int = -1  # -1: unchanged
    cycle_time: float = -1.0


def bits_to_bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def bits_from_bytes(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def slots_of(bits: int) -> list[int]:
    """The numbers of the bits that are set, in ascending order."""
    return [slot for slot, digit in enumerate(reversed(bin(bits)[2:])) if digit == "1"] if bits else []


ready_decoder = msgspec.msgpack.Decoder(Ready)
response_decoder = msgspec.msgpack.Decoder(Response)
encode = msgspec.msgpack.Encoder().encode
