"""Headers of tar files: ustar, GNU's long names, pax headers. Impossible values raise HeaderError."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNIT = 512
FILES = (b"0", b"\0", b"7")
NO_BODY = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes: their size field has no meaning
SPARSE = b"S"  # a sparse file in GNU's old format; the new format is a file with pax headers
OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
WANTED = ("path", "size")  # keys of a pax header that are used


class HeaderError(Exception):
    """A header with an impossible value."""


@dataclass(frozen=True, slots=True)
class Header:
    kind: bytes
    size: int
    name: str
    goes_on: bool  # the map of a sparse file continues in the next unit


@dataclass(frozen=True, slots=True)
class Pax:
    path: str = ""
    size: int | None = None
    is_sparse: bool = False


def parse(unit: bytes) -> Header:
    """The header in this unit of 512 bytes."""
    if _number(unit[148:156]) != sum(unit) - sum(unit[148:156]) + 8 * 0x20:
        raise HeaderError("there is no tar header")
    kind = unit[156:157]
    size = 0 if kind in NO_BODY else _number(unit[124:136])
    if size is None or size < 0:
        raise HeaderError("the tar header has no valid size")
    return Header(kind, size, _name(unit), kind == SPARSE and unit[482] != 0)


def parse_pax(body: bytes) -> Pax:
    """Parses lines "length name=value"; the length counts the whole line."""
    found: dict[str, bytes] = {}
    sparse, at = False, 0
    while at < len(body):
        space = body.find(b" ", at, at + 20)
        digits = body[at:space] if space > at else b""
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) + 1 < length <= len(body) - at:
            raise HeaderError("the pax header cannot be read")
        name, equals, value = body[space + 1 : at + length].rstrip(b"\n").partition(b"=")
        if not equals:
            raise HeaderError("the pax header cannot be read")
        key = name.decode(errors="replace")
        if key in WANTED:
            found[key] = value
        sparse = sparse or key.startswith("GNU.sparse.")
        at += length
    size = found.get("size")
    if size is not None and not (size.isdigit() and len(size) < 20):
        raise HeaderError("the pax header has no valid size")
    path = found.get("path", b"").decode(errors="replace")
    return Pax(path, None if size is None else int(size), sparse)


def _number(field: bytes) -> int | None:
    """The number in a field; None if the field is not a number."""
    if field[0] & 0x80:  # GNU's format for large and negative numbers
        return int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else int.from_bytes(field[1:], "big")
    fits = OCTAL.fullmatch(field)
    return None if fits is None else int(fits[1] or b"0", 8)


def _name(unit: bytes) -> str:
    name = unit[:100].split(b"\0", 1)[0].decode(errors="replace")
    prefix = unit[345:500].split(b"\0", 1)[0].decode(errors="replace") if unit[257:262] == b"ustar" else ""
    return f"{prefix}/{name}" if prefix and unit[263:265] == b"00" else name
