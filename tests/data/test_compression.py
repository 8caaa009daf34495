"""Compressed files as streams: whole, of several parts, and up to where they are damaged."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import size_limits
from paceline.data.formats.compression import DamageError, Stream, open_stream

RNG = np.random.default_rng(0)


def pieces(stream: Stream, size: int) -> tuple[bytes, str]:
    """All that can be read, so much at a time, and what is wrong with the rest."""
    found = bytearray()
    try:
        while part := stream.read(size):
            found += part
    except DamageError as error:
        return bytes(found), str(error)
    finally:
        stream.close()
    return bytes(found), ""


@given(
    parts=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    times=st.sampled_from([1, 1000]),
    size=st.sampled_from([1, 512, 1 << 20]),
)
def test_pieces_are_the_whole(tmp_path: Path, parts: list[bytes], times: int, size: int) -> None:
    raw = [part * times for part in parts]
    whole = b"".join(raw)
    if len(whole) / size > 20_000:
        size = 97
    (tmp_path / "x").write_bytes(b"".join(map(gzip.compress, raw)))
    assert pieces(open_stream(tmp_path / "x"), size) == (whole, "")
    (tmp_path / "x").write_bytes(zlib.compress(whole))
    assert pieces(open_stream(tmp_path / "x"), size) == (whole, "")


def test_what_precedes_damage_is_given_to_the_last_byte(tmp_path: Path) -> None:
    """Not only up to the last block that could be decompressed."""
    raw = RNG.integers(0, 20, 400_000, np.uint8).tobytes()
    packed = bytearray(gzip.compress(raw))
    packed[-6] ^= 1
    (tmp_path / "x").write_bytes(packed)
    found, said = pieces(open_stream(tmp_path / "x"), 1 << 20)
    assert found == raw
    assert "incorrect data check" in said
    (tmp_path / "x").write_bytes(packed[:-1000])
    found, said = pieces(open_stream(tmp_path / "x"), 1 << 20)
    assert found == raw[: len(found)]
    assert len(found) > 396_000
    assert said == "the file ends before its compressed data does"


def test_files_of_several_compressed_parts(tmp_path: Path) -> None:
    """As `cat a.gz b.gz` and bgzip make them, with zeros between and after them, and a great many empty ones."""
    parts = [RNG.bytes(size) for size in (10, 0, 70_000, 3)]
    packed = b"".join(map(gzip.compress, parts)) + gzip.compress(b"") * 20_000 + bytes(3000) + gzip.compress(b"end")
    (tmp_path / "x").write_bytes(packed + bytes(5000))
    assert pieces(open_stream(tmp_path / "x"), 999) == (b"".join(parts) + b"end", "")


def test_no_more_follows_than_a_compressed_file_can_hold(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(bytes(50 << 20), 9))
    stream = open_stream(tmp_path / "x")
    left = 50 << 20
    while part := stream.read(1 << 20):
        left -= len(part)
        known = stream.left()
        assert known is not None
        assert left <= known <= 1.1 * left + (2 << 20)
    stream.close()


def test_memory_that_is_available_is_that_of_the_control_group(tmp_path: Path) -> None:
    """As in a container."""
    proc, group = tmp_path / "proc", tmp_path / "sys" / "fs" / "cgroup" / "job"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable:      48 kB\n")
    (proc / "self" / "cgroup").write_text("0::/job\n")
    assert size_limits.available_memory(tmp_path / "sys", proc) == 48 << 10
    (group / "memory.max").write_text("max\n")
    assert size_limits.available_memory(tmp_path / "sys", proc) == 48 << 10
    for name, told in (("max", "10000\n"), ("current", "9000\n"), ("stat", "anon 3000\ninactive_file 6000\n")):
        (group / f"memory.{name}").write_text(told)
    assert size_limits.available_memory(tmp_path / "sys", proc) == 7000


@pytest.mark.parametrize(
    ("size", "told", "typed", "on_command_line"),
    [
        (5, "5 bytes", "1 << 20", "1MiB"),
        (3 << 19, "1.5 MiB", "2 << 20", "2MiB"),
        ((512 << 20) + 1, "512 MiB", "1 << 30", "1GiB"),
        (5 << 30, "5 GiB", "8 << 30", "8GiB"),
    ],
)
def test_sizes_as_they_are_told_and_typed(size: int, told: str, typed: str, on_command_line: str) -> None:
    assert (size_limits.told(size), size_limits.typed(size)) == (told, typed)
    assert size_limits.typed(size, on_command_line=True) == on_command_line
