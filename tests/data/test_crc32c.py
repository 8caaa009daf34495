"""CRC32C of many texts at once, and TFRecord files where there is no package for it."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_crc import slow_crc

import paceline.data as pd
from paceline.data.formats import crc32c
from paceline.errors import DataError


@given(
    st.lists(st.binary(max_size=9) | st.integers(0, 700).map(lambda n: np.random.default_rng(n).bytes(n)), max_size=6)
)
def test_many_at_once(texts: list[bytes]) -> None:
    assert crc32c.all_by_numpy(texts).tolist() == [slow_crc(text) for text in texts]


PIECE, GROUP = crc32c.PIECE, crc32c.GROUP
EDGES = [0, 3, 4, PIECE, PIECE + 1, GROUP * PIECE - 1, GROUP * PIECE + 3, GROUP**2 * PIECE, GROUP**2 * PIECE + 1]


def test_texts_of_very_different_lengths() -> None:
    rng = np.random.default_rng(0)
    texts = [rng.bytes(size) for size in (*EDGES, *reversed(EDGES), PIECE * crc32c.SLAB + 5)]
    google = pytest.importorskip("google_crc32c")
    assert crc32c.all_by_numpy(texts).tolist() == [google.value(text) for text in texts]
    assert crc32c.by_numpy(texts[-1]) == google.value(texts[-1])


def test_a_file_is_checked_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(size) for size in (0, 5, 300, 300, 300, 9000, 3)]
    with pd.Writer(tmp_path / "file") as writer:
        for record in records:
            writer.write(record)
    monkeypatch.setattr(crc32c, "value", functools.cache(lambda: crc32c.by_numpy))
    assert list(pd.files([tmp_path / "file"]).records()) == records
    raw = bytearray((tmp_path / "file").read_bytes())
    raw[500] ^= 1
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(DataError, match="record 3, at byte 353: its checksum is wrong"):
        list(pd.files([tmp_path / "file"]).records())


def test_a_report_says_that_numpy_computes_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pd.Writer(tmp_path / "a.tfrecord") as writer:
        writer.write(b"a record")
    monkeypatch.setattr(crc32c, "table", functools.cache(crc32c.table.__wrapped__))  # others may have needed it
    for function, told in ((pytest.importorskip("google_crc32c").value, False), (crc32c.by_numpy, True)):
        monkeypatch.setattr(crc32c, "value", functools.partial(_given, function))
        pipeline = pd.files(tmp_path / "a.tfrecord").records()
        assert list(pipeline) == [b"a record"]
        assert ("google-crc32c" in str(pipeline.report())) == told


def _given(value: object) -> object:
    return value
