"""Tar shards, as WebDataset writes them: files in a row that share a name up to its first dot are one sample.

    0001.jpg 0001.cls 0002.jpg 0002.cls …  →  {"__key__": "0001", "jpg": b"…", "cls": b"…"}, …

Reads what tar files hold in practice: ustar, GNU's long names, pax headers. Everything that is not a file is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from paceline.data.losses import Losses, Policy
from paceline.data.places import open_file, unpacked
from paceline.errors import DataError

UNIT = 512
CHUNK = 2 << 20  # bytes of samples that are given at once
LARGEST = 2 << 30  # bytes of one file
LONGEST = 1 << 20  # bytes of a long name, or of a pax header


def read(path: Any, start: int, policy: Policy, losses: Losses) -> Iterator[list[dict[str, Any]]]:
    """A shard's samples from number `start` on, in chunks."""
    name = os.fspath(path)
    raw = open_file(name)
    head = raw.read(2)
    raw.seek(0)
    shard = Shard(name, unpacked(raw, head), policy, losses)
    try:
        yield from _chunked(shard.samples(), start)
    finally:
        raw.close()


def _chunked(samples: Iterator[dict[str, Any]], start: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for number, sample in enumerate(samples):
        if number < start:
            continue
        chunk.append(sample)
        size += sum(len(value) for value in sample.values())
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Damaged(Exception):
    """What is wrong with a tar file, from here on."""


class Shard:
    """One tar file, read from its start to its end."""

    def __init__(self, path: str, file: Any, policy: Policy, losses: Losses) -> None:
        self._path, self._file, self._policy, self._losses = path, file, policy, losses
        self._offset = self._number = 0

    def samples(self) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        try:
            for name, content in self._members():
                folder, _, last = name.rpartition("/")
                stem, _, ending = last.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if sample and sample["__key__"] != key:
                    self._number += 1
                    yield sample
                    sample = {}
                sample["__key__"] = key
                sample[ending.lower()] = content
        except (Damaged, OSError, EOFError, ValueError) as error:
            self._lose(str(error))
            return  # what was begun may lack a part
        if sample:
            yield sample

    def _members(self) -> Iterator[tuple[str, bytes]]:
        long_name = ""
        sizes: dict[str, str] = {}
        while True:
            head = self._read(UNIT, may_end=True)
            if not head.strip(b"\0"):
                return  # the end: units of zeros, or nothing
            begin = self._offset - UNIT
            if not _is_header(head):
                raise Damaged(f"at byte {begin}: it has no tar header there")
            kind, size = head[156:157], _number(head[124:136])
            if kind in b"xgLK":
                if size > LONGEST:
                    raise Damaged(f"at byte {begin}: a header of {size} bytes")
                body = self._body(size)
                if kind == b"L":
                    long_name = body.rstrip(b"\0").decode(errors="replace")
                elif kind == b"x":
                    sizes = _pax(body)
                    long_name = sizes.get("path", long_name)
                continue
            size = int(sizes.get("size", size))
            if size < 0 or size > LARGEST:
                raise Damaged(f"at byte {begin}: a file of {size} bytes")
            content = self._body(size)
            name = long_name or _name(head)
            if kind in (b"0", b"\0", b"7") and not name.endswith("/"):
                yield name, content
            long_name, sizes = "", {}

    def _body(self, size: int) -> bytes:
        content = self._read(size)
        self._read(-size % UNIT)
        return content

    def _read(self, size: int, *, may_end: bool = False) -> bytes:
        parts, have = [], 0
        while have < size:
            part = self._file.read(min(8 << 20, size - have))
            if not part:
                break
            parts.append(part)
            have += len(part)
        if have < size and (have or not may_end):
            raise Damaged(f"at byte {self._offset}: the file ends in the middle of what is there")
        self._offset += have
        return b"".join(parts)

    def _lose(self, why: str) -> None:
        more = "" if self._policy == "raise" else " With it the rest of the file is lost."
        error = DataError(
            f"{self._path}: sample {self._number}, {why}.{more}",
            advice="Write the file again, or leave such samples out: on_error='skip', or 'warn' to be told.",
        )
        self._losses.lose(error, self._policy)


def _is_header(head: bytes) -> bool:
    try:
        told = _number(head[148:156])
    except ValueError:
        return False
    return told == sum(head) - sum(head[148:156]) + 8 * 0x20


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's way with large ones
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.strip(b"\0 ")
    return int(text, 8) if text else 0


def _name(head: bytes) -> str:
    name = head[:100].split(b"\0", 1)[0].decode(errors="replace")
    prefix = head[345:500].split(b"\0", 1)[0].decode(errors="replace") if head[257:262] == b"ustar" else ""
    return f"{prefix}/{name}" if prefix and head[263:265] == b"00" else name


def _pax(body: bytes) -> dict[str, str]:
    """Lines "size name=value", of which the size counts the whole line."""
    found: dict[str, str] = {}
    while body:
        size, space, _ = body.partition(b" ")
        length = int(size)
        if not space or not 0 < length <= len(body):
            raise ValueError("a pax header that cannot be read")
        name, _, value = body[len(size) + 1 : length].rstrip(b"\n").partition(b"=")
        found[name.decode(errors="replace")] = value.decode(errors="replace")
        body = body[length:]
    return found
