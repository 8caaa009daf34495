"""Requests from a worker to the launcher's store, and the answer.

Does not import torch, because the launcher imports this module, too.
"""

from __future__ import annotations

import msgspec

CANNOT = "which the others cannot do again without it"  # said where a worker is lost and the run must end


class Set(msgspec.Struct, tag=True, frozen=True):
    """Store this value, and the descriptors that come with the message."""

    key: str
    value: bytes


class Get(msgspec.Struct, tag=True, frozen=True):
    """Get the value of a key, with its descriptors; None if the key is missing. Never waits: the worker polls."""

    key: str


class Add(msgspec.Struct, tag=True, frozen=True):
    """Add to a counter, which starts at 0. Returns the new value."""

    key: str
    amount: int


class CompareSet(msgspec.Struct, tag=True, frozen=True):
    """Set the key if its value is `expected`, or if the key is missing and `expected` is empty. Returns the value
    afterwards."""

    key: str
    expected: bytes
    desired: bytes


class Has(msgspec.Struct, tag=True, frozen=True):
    """Check whether all these keys have values."""

    keys: list[str]


class Delete(msgspec.Struct, tag=True, frozen=True):
    """Delete a key. Returns whether the key existed."""

    key: str


class Count(msgspec.Struct, tag=True, frozen=True):
    """Count the keys below a prefix."""

    prefix: str


Ask = Set | Get | Add | CompareSet | Has | Delete | Count


class Told(msgspec.Struct, frozen=True):
    """The answer to a request, or why there is none."""

    value: bytes | int | None
    problem: str = ""


# --- in an elastic run: who is left, written by the launcher


ROOM = "room"  # set once there are fewer workers than the run may have


def left_key(generation: int) -> str:
    """The key for the members of this generation. The first group is generation 0, and is not written."""
    return f"left/{generation}"


def left_text(ranks: list[int]) -> bytes:
    """The members, by the ranks that they began with."""
    return ",".join(map(str, ranks)).encode()


def ranks_in(text: bytes) -> list[int]:
    return [int(rank) for rank in text.decode().split(",")]


def passed_key(generation: int, rank: int) -> str:
    """The key for the number of collectives of this generation that have ended on a worker that makes no more."""
    return f"passed/{generation}/{rank}"


def settled_key(generation: int) -> str:
    """The key for the number of collectives of this generation that count."""
    return f"settled/{generation}"
