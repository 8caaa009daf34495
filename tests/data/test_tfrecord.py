"""TFRecord files: written as the format's definition says, read back, and never believed when they are damaged."""

from __future__ import annotations

import gzip
import itertools
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_crc import masked_crc

import paceline.data as pd
from paceline.data.error_policy import LostSamples
from paceline.data.formats import crc32c, tfrecord
from paceline.data.formats.tf_example import decode_example, encode_example
from paceline.errors import DataError, PacelineError, UsageError


def framed(record: bytes) -> bytes:
    """A record, byte by byte as the format is defined."""
    length = struct.pack("<Q", len(record))
    crcs = (struct.pack("<I", masked_crc(part)) for part in (length, record))
    return length + next(crcs) + record + next(crcs)


def said_by(function: Callable[[], Any], well: str) -> str:
    """What an error of ours says, or `well`."""
    try:
        function()
    except PacelineError as error:
        return error.message
    return well


records_strategy = st.lists(st.binary(max_size=40), max_size=8)


def read(path: Path, on_error: Any = "raise") -> list[bytes]:
    return list(pd.files([path]).records(on_error=on_error))


@given(st.binary(max_size=300))
def test_the_checksum_is_the_definitions(data: bytes) -> None:
    assert crc32c.masked(data) == masked_crc(data)
    assert crc32c.masked_all([data, b"", data]).tolist() == [masked_crc(data), masked_crc(b""), masked_crc(data)]


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    crc32c.checksum.cache_clear()
    yield
    crc32c.checksum.cache_clear()


@pytest.mark.usefixtures("without_package")
def test_without_google_crc32c_files_are_neither_read_nor_written(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecord").write_bytes(framed(b"record"))
    (tmp_path / "x.tfrecord.index").write_text("0 22\n")
    for use in (
        lambda: read(tmp_path / "x.tfrecord"),
        lambda: read(tmp_path / "x.tfrecord", "skip"),
        lambda: pd.indexed(tmp_path / "x.tfrecord"),
        lambda: pd.Writer(tmp_path / "y.tfrecord"),
    ):
        with pytest.raises(UsageError, match="need the package google-crc32c") as caught:
            use()
        assert caught.value.advice == 'Install it: pip install "paceline[data]"'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.tfrecord", "x.tfrecord.index"]


PACKINGS: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "zlib": zlib.compress}
each_packing = pytest.mark.parametrize("packing", PACKINGS)


@each_packing
@given(records=records_strategy)
def test_files_of_the_definition_are_read(packing: str, records: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / f"{packing}.tfrecord"
    path.write_bytes(PACKINGS[packing](b"".join(map(framed, records))))
    assert read(path) == records


@given(records=records_strategy)
def test_what_is_written_is_the_definitions(records: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "written.tfrecord"
    with pd.Writer(path) as writer:
        for record in records:
            writer.write(record)
    assert path.read_bytes() == b"".join(map(framed, records))
    sizes = [len(record) + 16 for record in records]
    starts = [0, *itertools.accumulate(sizes)][:-1]
    index = (tmp_path / "written.tfrecord.index").read_text()
    assert index == "".join(f"{start} {size}\n" for start, size in zip(starts, sizes, strict=True))


def test_large_records_and_many_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(size) for size in (5, 3 << 20, 0, 100, (2 << 20) - 16, 7 << 20, 1)]
    with pd.Writer(tmp_path / "large") as writer:
        for record in records:
            writer.write(record)
    assert read(tmp_path / "large") == records
    (tmp_path / "packed.gz").write_bytes(gzip.compress((tmp_path / "large").read_bytes(), 1))
    assert list(pd.files([tmp_path / "packed.gz"]).records("tfrecord")) == records


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    def write_half() -> None:
        with pd.Writer(tmp_path / "half") as writer:
            writer.write(b"one")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="nowhere"):
        pd.Writer(tmp_path / "nowhere" / "file")


@pytest.mark.parametrize("index", [True, False])
def test_reading_from_the_middle(tmp_path: Path, index: bool) -> None:
    records = [bytes([number]) * number for number in range(50)]
    with pd.Writer(tmp_path / "file", index=index) as writer:
        for record in records:
            writer.write(record)
    for start in (0, 1, 17, 49, 50, 60):
        chunks = tfrecord.read(tmp_path / "file", start, "raise", LostSamples())
        assert list(itertools.chain(*chunks)) == records[start:]


def test_an_index_of_another_file_is_not_believed(tmp_path: Path) -> None:
    with pd.Writer(tmp_path / "file") as writer:
        writer.write(b"abc")
    raw = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(raw + framed(b"more"))
    assert tfrecord.read_index(tmp_path / "file") is None
    assert [list(c) for c in tfrecord.read(tmp_path / "file", 1, "raise", LostSamples())] == [[b"more"]]


@pytest.mark.parametrize("index", [True, False])
def test_records_by_their_number(tmp_path: Path, index: bool) -> None:
    records = [str(number).encode() * 3 for number in range(40)]
    for number in range(3):
        with pd.Writer(tmp_path / f"{number}.tfrecord", index=index) as writer:
            for record in records[number * 15 : (number + 1) * 15]:
                writer.write(record)
    pipeline = pd.indexed(str(tmp_path / "*.tfrecord"))
    assert list(pipeline) == records
    assert len(pipeline.batch(7)) == 6
    shuffled = list(pipeline.shuffle(seed=1))
    assert shuffled != records
    assert sorted(shuffled) == sorted(records)
    raw = bytearray((tmp_path / "1.tfrecord").read_bytes())
    raw[15] ^= 1
    (tmp_path / "1.tfrecord").write_bytes(raw)
    with pytest.raises(DataError, match=r"record 0 of .*1\.tfrecord, at byte 0: its checksum is wrong"):
        list(pd.indexed(str(tmp_path / "*.tfrecord")))


def test_a_dataset_is_packed_and_read_back(tmp_path: Path) -> None:
    samples = [(np.full(2, number, np.float32), f"n{number}") for number in range(30)]
    packed = pd.pack(samples, tmp_path / "packed", shards=4)
    assert (packed.records, len(packed.files)) == (30, 4)
    found = list(pd.files(str(tmp_path / "packed" / "*.tfrecord")).records().map(pd.decode_sample))
    assert sorted(name for _, name in found) == sorted(name for _, name in samples)
    assert all(f"n{int(row[0])}" == name for row, name in found)
    with pytest.raises(UsageError, match="is not empty"):
        pd.pack(samples, tmp_path / "packed")


# -- damage ------------------------------------------------------------------------------------------------------------


RECORDS = [b"first", b"", b"third" * 20, b"fourth"]
WHOLE = b"".join(map(framed, RECORDS))
STARTS = [0, 21, 37, 153]


@pytest.mark.parametrize(
    ("damage", "says", "left"),
    [
        (lambda raw: raw[:38] + b"\x01" + raw[39:], "record 2, at byte 37: the checksum of its length", RECORDS[:2]),
        (lambda raw: raw[:60] + b"\x00" + raw[61:], "record 2, at byte 37: its checksum", [*RECORDS[:2], RECORDS[3]]),
        (lambda raw: raw[:-3], "record 3, at byte 153: the file ends", RECORDS[:3]),
        (lambda raw: raw[:45], "record 2, at byte 37: the file ends", RECORDS[:2]),
        (lambda raw: raw + b"more", "record 4, at byte 175: the file ends", RECORDS),
        (lambda raw: b"text that is no record at all", "record 0, at byte 0: the checksum of its length", []),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, damage: Any, says: str, left: list[bytes]) -> None:
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(damage(WHOLE))
    with pytest.raises(DataError, match=rf"damaged\.tfrecord: {says}"):
        read(path)
    pipeline = pd.files([path]).records(on_error="skip")
    assert list(pipeline) == left
    assert pipeline.lost == 1
    warned = pd.files([path]).records(on_error="warn")
    with pytest.warns(UserWarning, match="damaged|left out") as said:
        assert list(warned) == left
    assert "1 samples were left out in this epoch" in str(said[-1].message)


@each_packing
@given(
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 200),
    lie=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
def test_fuzzed_files_never_crash_and_take_no_memory(
    packing: str, changes: list[tuple[int, int]], cut: int, lie: int | None, tmp_path: Path
) -> None:
    """Bytes are changed and cut off, and a length that lies has the right checksum. What is read is whole records."""
    raw = bytearray(WHOLE)
    if lie is not None:
        length = struct.pack("<Q", lie)
        raw[37:49] = length + struct.pack("<I", crc32c.masked(length))
    if packing == "plain":
        for at, value in changes:
            raw[at % len(raw)] = value
        packed = bytes(raw[: max(1, len(raw) - cut)])
    else:
        made = bytearray(PACKINGS[packing](bytes(raw)))
        for at, value in changes:
            made[at % len(made)] = value
        packed = bytes(made[: max(1, len(made) - cut % len(made))])
    path = tmp_path / "fuzzed"
    path.write_bytes(packed)
    tracemalloc.start()
    try:
        found = read(path, "skip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert set(found) <= set(RECORDS) | {b""} or changes or lie is not None
    assert peak < 64 << 20
    assert "fuzzed" in said_by(lambda: read(path), "fuzzed")


def test_a_bomb_is_read_in_pieces(tmp_path: Path) -> None:
    """A thousandfold larger than it looks, with a length that is right: refused, not unpacked."""
    length = struct.pack("<Q", 4 << 30)
    head = length + struct.pack("<I", crc32c.masked(length))
    (tmp_path / "bomb").write_bytes(gzip.compress(head + bytes(1 << 20), 9))
    with pytest.raises(DataError, match="its length is more than the file has"):
        read(tmp_path / "bomb")


# -- examples ----------------------------------------------------------------------------------------------------------


features_strategy = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        st.lists(st.binary(max_size=20), min_size=1, max_size=4),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=90),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8),
    ),
    max_size=5,
)


@given(features_strategy)
def test_examples_come_back(features: dict[str, Any]) -> None:
    found = decode_example(encode_example(features))
    assert list(found) == list(features)
    for name, value in features.items():
        assert list(found[name]) == value
        if isinstance(value[0], float):
            assert found[name].dtype == np.float32


def test_an_example_byte_by_byte() -> None:
    """As protocol buffers define it, packed and not, with a field that is not known."""
    packed = bytes.fromhex("0a0f 0a0d 0a01 61 1208 1a06 0a04 0107ac02".replace(" ", ""))
    assert decode_example(packed)["a"].tolist() == [1, 7, 300]
    single = bytes.fromhex("0a0e 0a0c 0a01 61 1207 1a05 0801 08ac02".replace(" ", ""))
    assert decode_example(single)["a"].tolist() == [1, 300]
    floats = bytes.fromhex("0a0e 0a0c 0a01 66 1207 1205 0d 0000803f".replace(" ", "")) + bytes.fromhex("5001")
    assert decode_example(floats)["f"].tolist() == [1.0]
    assert encode_example({"a": [1, 7, 300]}) == packed
    minus = decode_example(encode_example({"n": -1, "t": "ü", "x": np.arange(3.0), "flag": True}))
    assert (minus["n"].tolist(), minus["t"], minus["x"].tolist()) == ([-1], ["ü".encode()], [0, 1, 2])
    with pytest.raises(UsageError, match="feature 'o'"):
        encode_example({"o": object()})


def test_numbers_that_are_too_long_are_no_crash() -> None:
    for tail in ("ffffffffffffffffff7f", "ffffffffffffffffffff01"):
        packed = bytes.fromhex(tail)
        feature = b"\x1a" + bytes([len(packed) + 2]) + b"\x0a" + bytes([len(packed)]) + packed
        entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
        raw = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
        assert "Not a valid" in said_by(lambda raw=raw: decode_example(raw), "Not a valid")


@given(features_strategy)
def test_both_ways_of_reading_an_example_agree(features: dict[str, Any]) -> None:
    """The usual one, and the one for whatever the wire format allows: here a field at the end that nobody knows."""
    raw = encode_example(features)
    usual, other = decode_example(raw), decode_example(raw + b"\x50\x01")
    assert {name: list(values) for name, values in usual.items()} == {n: list(v) for n, v in other.items()}
    assert [type(values) for values in usual.values()] == [type(values) for values in other.values()]


@given(st.binary(max_size=80), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=3))
def test_fuzzed_examples_never_crash(raw: bytes, changes: list[tuple[int, int]]) -> None:
    good = bytearray(encode_example({"image": b"123", "label": [1, 2, 300], "x": [0.5], "many": list(range(70))}))
    for at, value in changes:
        good[at % len(good)] = value
    for text in (raw, bytes(good)):
        assert "Not a valid" in said_by(lambda text=text: decode_example(text), "Not a valid")


def test_a_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    with pd.Writer(tmp_path / "file.tfrecord") as writer:
        writer.write(encode_example({"a": 1}))
        writer.write(b"\xff\xff")
    with pytest.raises(DataError, match=r"record 1 of .*file\.tfrecord: Not a valid tf.train.Example"):
        list(pd.files([tmp_path / "file.tfrecord"]).records().map(pd.decode_example))


# -- TensorFlow's own --------------------------------------------------------------------------------------------------


def test_tensorflow_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    with pd.Writer(tmp_path / "ours") as writer:
        for number in range(5):
            writer.write(encode_example({"n": number, "b": b"x" * number, "f": [0.5, number]}))
    found = [tf.train.Example.FromString(raw.numpy()) for raw in tf.data.TFRecordDataset(str(tmp_path / "ours"))]
    assert [e.features.feature["n"].int64_list.value[0] for e in found] == list(range(5))
    assert found[3].features.feature["b"].bytes_list.value[0] == b"xxx"
    for packing in ("", "GZIP", "ZLIB"):
        with tf.io.TFRecordWriter(str(tmp_path / f"its{packing}"), packing) as its:
            for example in found:
                its.write(example.SerializeToString())
        back = list(pd.files([tmp_path / f"its{packing}"]).records("tfrecord").map(decode_example))
        assert [e["n"].tolist() for e in back] == [[n] for n in range(5)]
        assert back[3]["f"].tolist() == [0.5, 3.0]
