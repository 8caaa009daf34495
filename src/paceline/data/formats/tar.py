"""Reads tar shards in WebDataset's format: consecutive files with the same name up to the first dot are one sample.

    0001.jpg 0001.cls 0002.jpg 0002.cls …  →  {"__key__": "0001", "jpg": b"…", "cls": b"…"}, …

Members that are not files are left out. Of samples over the limit and sparse files, only that sample is lost; after
damage the rest of the shard is lost.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.data.error_policy import LostSamples, Policy
from paceline.data.formats.compression import DamageError, Stream, open_stream
from paceline.data.size_limits import RECORD, STEP, too_large
from paceline.errors import DataError

CHUNK = 2 << 20  # bytes of samples that are delivered at once
LONGEST = 1 << 20  # bytes of a long name or a pax header, at most
CHAIN = 16  # long names and pax headers before one file, at most
MAPS = 1 << 16  # units of a sparse file's map, at most
HELD = 512  # bytes that a sample and each of its parts take in memory, beside their contents
SKIP = "Or leave such samples out: on_error='skip', or 'warn' for warnings."


def read(
    path: Any, start: int, policy: Policy, losses: LostSamples, max_bytes: int = RECORD
) -> Iterator[list[dict[str, Any]]]:
    """A shard's samples from number `start` on, in chunks."""
    name = os.fspath(path)
    stream = open_stream(name)
    try:
        yield from _chunked(Shard(name, stream, policy, losses, max_bytes).samples(), start)
    finally:
        stream.close()


def _chunked(samples: Iterator[dict[str, Any]], start: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for number, sample in enumerate(samples):
        if number < start:
            continue
        chunk.append(sample)
        size += sum(len(value) + HELD for value in sample.values())
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True)
class Member:
    """The header of a file in a shard."""

    name: str
    size: int
    is_sparse: bool

    @property
    def key_and_ending(self) -> tuple[str, str]:
        folder, _, last = self.name.rpartition("/")
        stem, _, ending = last.partition(".")
        return f"{folder}/{stem}" if folder else stem, ending.lower()


class Shard:
    """One tar file, read from its start to its end."""

    def __init__(self, path: str, stream: Stream, policy: Policy, losses: LostSamples, max_bytes: int) -> None:
        self._path, self._stream, self._policy, self._losses = path, stream, policy, losses
        self._limit = max_bytes
        self._number = self._begun = 0  # the current sample, and the offset of the last header

    def samples(self) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        last, size, lost = None, 0, False
        try:
            for member in self._members():
                key, ending = member.key_and_ending
                if key != last:
                    if last is not None:
                        self._number += 1
                    if sample and not lost:
                        yield sample
                    sample, last, size, lost = {}, key, 0, False
                size += member.size + HELD
                if not lost and (member.is_sparse or size > self._limit):
                    lost, sample = True, {}
                    self._leave_out(member, size)
                if lost:
                    self._pass(member.size)
                else:
                    sample[ending] = self._body(member.size)
                    sample["__key__"] = key
            if sample and not lost:
                yield sample
            while self._stream.packed and self._stream.read(STEP):
                pass  # the checksum of a compressed file is at its end
        except HeaderError as error:
            self._lose(self._begun, str(error))
        except DamageError as error:
            self._lose(self._stream.offset, str(error))  # also drops the current sample, which may lack a part
        except MemoryError:
            self._lose(self._begun, "there is not enough memory for this sample")

    def _members(self) -> Iterator[Member]:
        """The headers of the shard's files. The caller reads the contents of each file, or skips them, before the
        next."""
        name, pax, chain = "", Pax(), 0
        while True:
            self._begun = self._stream.offset
            unit = self._read(UNIT, may_end=True)
            if not unit:
                raise DamageError("the file ends without the zeros that end a tar file, so it may be truncated")
            if not unit.strip(b"\0"):
                if self._read(UNIT, may_end=True).strip(b"\0"):
                    raise HeaderError("a header of zeros, with data after it")
                return
            header = parse(unit)
            if header.kind in b"xgLK":
                chain += 1
                if header.size > LONGEST or chain > CHAIN:
                    raise HeaderError(f"a header of {header.size} bytes, after {chain - 1} others for one file")
                body = self._body(header.size)
                if header.kind == b"L":
                    name = body.rstrip(b"\0").decode(errors="replace")
                elif header.kind == b"x":
                    pax = parse_pax(body)
                continue
            size = header.size if pax.size is None or header.kind in NO_BODY else pax.size
            self._check_room(size)
            if header.goes_on:
                self._pass_map()
            name = pax.path or name or header.name
            if header.kind in (*FILES, SPARSE) and not name.endswith("/"):
                yield Member(name, size, pax.is_sparse or header.kind == SPARSE)
            else:
                self._pass(size)
            name, pax, chain = "", Pax(), 0

    def _pass_map(self) -> None:
        """Skips the units in which the map of a sparse file continues."""
        for _ in range(MAPS):
            if not self._read(UNIT)[504]:
                return
        raise HeaderError("a sparse file whose map does not end")

    def _check_room(self, size: int) -> None:
        left = self._stream.left()
        if left is not None and size > left:
            raise HeaderError(f"a file of {size} bytes, but {left} follow at most")

    def _body(self, size: int) -> bytes:
        content = self._read(size)
        self._read(-size % UNIT)
        return content

    def _pass(self, size: int) -> None:
        size += -size % UNIT
        while size:
            size -= len(self._read(min(STEP, size)))

    def _read(self, size: int, *, may_end: bool = False) -> bytes:
        """Exactly `size` bytes. Memory grows with the bytes that were read, so a wrong size allocates nothing."""
        found = self._stream.read(min(size, STEP))
        if len(found) < size:
            whole = io.BytesIO()
            whole.write(found)
            while whole.tell() < size and (found := self._stream.read(min(size - whole.tell(), STEP))):
                whole.write(found)
            found = whole.getvalue()
            if len(found) < size and (found or not may_end):
                raise DamageError("the file ends in the middle of this sample")
        return found

    def _leave_out(self, member: Member, size: int) -> None:
        where = self._where(self._begun)
        if member.is_sparse:
            error = DataError(
                f"{where}: {member.name} is a sparse file, which is not supported.",
                advice=f"Write the file again without tar's option --sparse. {SKIP}",
            )
        else:
            what = f"{where}: with {member.name} the sample"
            error = too_large(what, size, self._limit, ".records(max_bytes={})", otherwise=SKIP)
        self._losses.lose(error, self._policy)

    def _lose(self, offset: int, why: str) -> None:
        more = "" if self._policy == "raise" else " The rest of the file is lost as well."
        error = DataError(f"{self._where(offset)}: {why}.{more}", advice=f"Write the file again. {SKIP}")
        self._losses.lose(error, self._policy)

    def _where(self, offset: int) -> str:
        return f"{self._path}: sample {self._number}, {self._stream.place(offset)}"


# -- headers: ustar, GNU's long names, pax ----------------------------------------------------------------------------
# Impossible values raise HeaderError.


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
