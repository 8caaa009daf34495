"""TFRecord files read block by block give what a reader gives that goes through them byte by byte."""

from __future__ import annotations

import gzip
import itertools
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data.error_policy import LostSamples
from paceline.data.formats import crc32c, tfrecord

FOUND = "the checksum of its length is wrong", "the file ends in the middle of the record", "its checksum is wrong"


def by_definition(raw: bytes) -> tuple[list[bytes], list[str]]:
    """Whole records, and what is wrong with the others, one after the other."""
    records, wrong, at, number = [], [], 0, 0
    while at < len(raw):
        place = f"record {number}, at byte {at}"
        if len(raw) - at < 12:
            return records, [*wrong, f"{place}: {FOUND[1]}"]
        length, crc = struct.unpack_from("<QI", raw, at)
        if crc32c.masked(raw[at : at + 8]) != crc:
            return records, [*wrong, f"{place}: {FOUND[0]}"]
        record, tail = raw[at + 12 : at + 12 + length], raw[at + 12 + length : at + 16 + length]
        if len(tail) < 4:
            return records, [*wrong, f"{place}: {FOUND[1]}"]
        if crc32c.masked(record) == struct.unpack("<I", tail)[0]:
            records.append(record)
        else:
            wrong.append(f"{place}: {FOUND[2]}")
        at, number = at + 16 + length, number + 1
    return records, wrong


# Runs of records of one length, and those that differ.
runs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=6)


@given(
    runs=runs,
    block=st.integers(20, 2000),
    damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 30),
    start=st.integers(0, 5),
    packing=st.sampled_from([bytes, gzip.compress]),
)
def test_blocks_hide_nothing(
    runs: list[tuple[int, int]],
    block: int,
    damage: list[tuple[int, int]],
    cut: int,
    start: int,
    packing: Callable[[bytes], bytes],
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(len(runs))
    whole = [rng.bytes(length) for length, count in runs for _ in range(count)]
    raw = bytearray(b"".join(head + record + tail for record in whole for head, tail in [tfrecord.frame(record)]))
    for at, change in damage:
        if raw:
            raw[at % len(raw)] ^= change
    del raw[max(0, len(raw) - cut) :]
    path = tmp_path / "file"
    path.write_bytes(packing(bytes(raw)))
    losses = LostSamples()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "BLOCK", block)
        found = list(itertools.chain(*tfrecord.read(path, start, "skip", losses)))
    records, wrong = by_definition(bytes(raw))
    assert found == records[start:]
    assert len(losses.reasons) == len(wrong)
    for said, expected in zip(losses.reasons, wrong, strict=True):
        place, why = expected.split(": ")
        assert place in said
        # A length that is whole and more than the file has may be told as that.
        assert why in said or (why == FOUND[1] and "its length is more than the file has" in said)


def test_many_lengths_are_not_kept_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "HEADS", 8)
    with pd.Writer(tmp_path / "file") as writer:
        for length in range(50):
            writer.write(bytes(length))
    reader = tfrecord.Reader(str(tmp_path / "file"))
    try:
        assert sum(map(len, reader.chunks())) == 50
        assert len(reader._lengths) <= 8
    finally:
        reader.close()
