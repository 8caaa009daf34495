"""What a worker asks the store that its launcher keeps, and what it is told.

Imports no torch: the launcher reads these, too.
"""

from __future__ import annotations

import msgspec


class Set(msgspec.Struct, tag=True, frozen=True):
    """Keep this value, and the descriptors that come with the message."""

    key: str
    value: bytes


class Get(msgspec.Struct, tag=True, frozen=True):
    """The value of a key, with its descriptors; None where there is none yet. Never waits: the worker asks again."""

    key: str


class Add(msgspec.Struct, tag=True, frozen=True):
    """Add to a number, which is 0 at first."""

    key: str
    amount: int


class CompareSet(msgspec.Struct, tag=True, frozen=True):
    """Set where the value is the expected one, or is expected to be empty and missing. Tells the value afterwards."""

    key: str
    expected: bytes
    desired: bytes


class Has(msgspec.Struct, tag=True, frozen=True):
    """Whether all these keys have values."""

    keys: list[str]


class Delete(msgspec.Struct, tag=True, frozen=True):
    """Forget a key. Tells whether there was one."""

    key: str


class Count(msgspec.Struct, tag=True, frozen=True):
    """How many keys there are under a prefix."""

    prefix: str


Ask = Set | Get | Add | CompareSet | Has | Delete | Count


class Told(msgspec.Struct, frozen=True):
    """The answer."""

    value: bytes | int | None
