"""Damaged files of every kind: an error that names file and byte, or, if asked, a loss that is counted."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bombs import deflated, record_head, tar_head

import paceline.data as pd
from paceline.data.formats import tfrecord
from paceline.data.stages.cache import read_pass, write_pass
from paceline.errors import DataError, UsageError

RNG = np.random.default_rng(0)
CONTENTS = {f"{number:04}.bin": RNG.bytes(3000) for number in range(40)}
RECORDS = [RNG.bytes(3000) for _ in range(40)]
LINES = [RNG.bytes(1500).hex() for _ in range(40)]
END = bytes(1024)  # of a tar file


def tarred(members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def recorded(records: list[bytes]) -> bytes:
    return b"".join(head + record + tail for record in records for head, tail in [tfrecord.frame(record)])


TAR, RECORD, TEXT = tarred(CONTENTS), recorded(RECORDS), "".join(f"{line}\n" for line in LINES).encode()
SAMPLES = [{"__key__": name[:-4], "bin": content} for name, content in CONTENTS.items()]
WHOLE: dict[str, tuple[bytes, list[Any]]] = {
    "a.tar.gz": (gzip.compress(TAR), SAMPLES),
    "a.tgz": (gzip.compress(TAR), SAMPLES),
    "a.tfrecord.gz": (gzip.compress(RECORD), RECORDS),
    "a.tfrecord.zlib": (zlib.compress(RECORD), RECORDS),
    "a.txt.gz": (gzip.compress(TEXT), LINES),
    "a.jsonl.gz": (gzip.compress(TEXT), LINES),
}


def flip(raw: bytes, at: int, bits: int = 0x55) -> bytes:
    at %= len(raw)
    return raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :]


DAMAGES: dict[str, Any] = {
    "cut in the middle": lambda raw: raw[: len(raw) // 2],
    "cut in its checksum": lambda raw: raw[:-3],
    "wrong checksum": lambda raw: flip(raw, -6) if raw[0] == 0x1F else flip(raw, -2),
    "wrong bytes in the middle": lambda raw: raw[: len(raw) // 2] + b"\xff" * 40 + raw[len(raw) // 2 + 40 :],
    "something after it": lambda raw: raw + b"something",
    "cut in its header": lambda raw: raw[:5],
    "zero length": lambda raw: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_compressed_file_is_named_and_the_others_are_read(tmp_path: Path, name: str, damage: str) -> None:
    raw, whole = WHOLE[name]
    bad, good = tmp_path / f"bad-{name}", tmp_path / f"good-{name}"
    bad.write_bytes(DAMAGES[damage](raw))
    good.write_bytes(raw)
    with pytest.raises(DataError, match=r"bad-a\..* byte \d+ of the decompressed data \(byte \d+ of the compressed"):
        list(pd.files([bad]).records())
    pipeline = pd.files([bad, good]).records(parallel=1, on_error="skip")
    found = list(pipeline)
    # Of wrong bytes in a record its own checksum tells, and at the end the file's.
    assert pipeline.lost == (2 if "tfrecord" in name and damage == "wrong bytes in the middle" else 1)
    assert found[-len(whole) :] == whole
    before = found[: -len(whole)]
    assert before == whole[: len(before)] or damage == "wrong bytes in the middle"
    most = {"cut in the middle": 15, "wrong bytes in the middle": 15}.get(damage, 40)
    assert len(before) >= (0 if "header" in damage or "zero" in damage else most)


def test_a_text_whose_name_promises_gzip_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "x.txt.gz").write_bytes(flip(gzip.compress(TEXT), 0))
    with pytest.raises(DataError, match="incorrect header check"):
        list(pd.lines(tmp_path / "x.txt.gz"))
    pipeline = pd.lines(tmp_path / "x.txt.gz", on_error="skip")
    assert (list(pipeline), pipeline.lost) == ([], 1)


# -- tar ---------------------------------------------------------------------------------------------------------------


def pax(body: bytes, kind: bytes = b"x") -> bytes:
    info = tarfile.TarInfo("pax")
    info.type, info.size = kind, len(body)
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def with_field(head: bytes, at: int, field: bytes) -> bytes:
    """A header with another field, and its checksum right."""
    raw = head[:at] + field + head[at + len(field) :]
    total = sum(raw) - sum(raw[148:156]) + 8 * 32
    return raw[:148] + b"%06o\0 " % total + raw[156:]


ONE, TWO, FOUR = (tarred({f"{key}.txt": key.encode()})[:1024] for key in "124")
FIRST = [{"__key__": "1", "txt": b"1"}]
BOTH = [*FIRST, {"__key__": "4", "txt": b"4"}]
HEAD = tar_head("3.txt", 5)
SPARSE = with_field(with_field(tar_head("3.txt", 512), 156, b"S"), 482, b"\1")
SIZE = 124  # where it stands
CASES: dict[str, tuple[bytes, str, list[Any]]] = {
    "a size below zero": (with_field(HEAD, SIZE, b"\xff" * 12) + END, "no valid size", []),
    "a size that is no number": (with_field(HEAD, SIZE, b"-0000000005\0") + END, "no valid size", []),
    "a size beyond the file": (with_field(HEAD, SIZE, b"77777777777\0") + END, "but 1024 follow at most", []),
    "an absurd size": (with_field(HEAD, SIZE, b"\x80" + b"\xff" * 11) + END, "follow at most", []),
    "a pax size below zero": (pax(b"11 size=-5\n") + HEAD + END, "no valid size", []),
    "an absurd pax size": (pax(b"28 size=9999999999999999999\n") + HEAD + END, "follow at most", []),
    "a pax line that is too long": (pax(b"999999999 path=x\n") + HEAD + END, "the pax header cannot be read", []),
    "a pax line without a length": (pax(b"path=x\n") + HEAD + END, "the pax header cannot be read", []),
    "a huge pax header": (with_field(pax(b""), SIZE, b"00077777777\0") + END, "a header of 16777215 bytes", []),
    "an endless chain of headers": (pax(b"9 a=bcde\n") * 5000 + HEAD + END, "after 16 others", []),
    "an endless chain of names": (pax(b"name", b"L") * 5000 + HEAD + END, "after 16 others", []),
    "zeros in the place of a header": (bytes(512) + HEAD + bytes(512) + END, "a header of zeros", []),
    "no end": (b"", "ends without the zeros", []),
    "a sparse file": (SPARSE + bytes(512) + bytes(512) + FOUR + END, "3.txt is a sparse file", BOTH),
    "a sparse file without an end": (SPARSE + (bytes(504) + b"\1" + bytes(7)) * 70_000, "does not end", FIRST),
    "a sparse file by pax": (
        pax(b"22 GNU.sparse.major=1\n") + tar_head("3.txt", 512) + bytes(512) + FOUR + END,
        "3.txt is a sparse file",
        BOTH,
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_tar_headers_that_lie(tmp_path: Path, case: str, packed: bool) -> None:
    rest, says, left = CASES[case]
    raw = ONE + TWO + rest
    path = tmp_path / ("x.tar.gz" if packed else "x.tar")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    says = says.replace("1024", r"\d+").replace("..", r"\.")
    with pytest.raises(DataError, match=rf"x\.tar(\.gz)?: sample \d, at byte \d+.*: .*{says}"):
        list(pd.files([path]).records())
    pipeline = pd.files([path]).records(on_error="skip")
    found = list(pipeline)
    assert pipeline.lost == 1
    # Whether the last sample has all of its parts is not known where damage follows it.
    assert found == (left if left == FIRST else [left[0], {"__key__": "2", "txt": b"2"}, *left[1:]] if left else FIRST)


def test_a_long_pax_header_takes_no_time(tmp_path: Path) -> None:
    """Two hundred thousand lines in a header: gone through once, not copied for each."""
    raw = pax(b"5 a=\n" * 200_000) + ONE + END
    (tmp_path / "x.tar").write_bytes(raw)
    assert list(pd.files([tmp_path / "x.tar"]).records()) == FIRST


def test_a_sample_is_as_large_as_its_parts_together(tmp_path: Path) -> None:
    members = {f"1.{number}": bytes(100) for number in range(20)} | {"2.x": b"2"}
    (tmp_path / "x.tar").write_bytes(tarred(members))
    with pytest.raises(DataError, match=r"x\.tar: sample 0, at byte \d+: with 1\.\d+ the sample has \d+ bytes"):
        list(pd.files([tmp_path / "x.tar"]).records(max_bytes=8000))
    pipeline = pd.files([tmp_path / "x.tar"]).records(max_bytes=8000, on_error="skip")
    assert (list(pipeline), pipeline.lost) == ([{"__key__": "2", "x": b"2"}], 1)


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_over_the_limit_is_left_out_alone(tmp_path: Path, packed: bool) -> None:
    records = [b"first", bytes(3 << 20), b"third", bytes(2 << 20), b"fifth"]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(gzip.compress(recorded(records)) if packed else recorded(records))
    with pytest.raises(
        DataError, match=r"record 1, at byte 21.*: the record has 3145728 bytes \(3 MiB\), over the limit of 2 "
    ) as told:
        list(pd.files([path]).records(max_bytes=2 << 20))
    assert "max_bytes=4 << 20" in told.value.advice
    pipeline = pd.files([path]).records(max_bytes=2 << 20, on_error="skip")
    assert (list(pipeline), pipeline.lost) == ([records[0], *records[2:]], 1)
    if not packed:
        with pytest.raises(DataError, match=r"record 1 of .*, at byte 21, has 3145728 bytes"):
            list(pd.indexed(path, max_bytes=2 << 20))


def test_a_line_over_the_limit_is_left_out_alone(tmp_path: Path) -> None:
    lines = ["first", "x" * 600_000, "third", "y" * 5000, "fifth"]
    (tmp_path / "x.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"x\.txt: line 2, at byte \d+, has \d+ bytes .* or more"):
        list(pd.lines(tmp_path / "x.txt", max_bytes=5000))
    pipeline = pd.lines(tmp_path / "x.txt", max_bytes=5000, on_error="skip")
    assert (list(pipeline), pipeline.lost) == ([lines[0], *lines[2:]], 1)


def test_limits_are_numbers_above_zero(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    for ask in (
        lambda: pd.files([tmp_path / "x"]).records(max_bytes=0),
        lambda: pd.lines(tmp_path / "x", max_bytes=-1),
        lambda: pd.indexed(tmp_path / "x", max_bytes=0),
        lambda: pd.idx(tmp_path / "x", max_bytes=0),
        lambda: pd.cifar(tmp_path / "x", max_bytes=0),
    ):
        with pytest.raises(UsageError, match="max_bytes="):
            ask()


def test_arrays_have_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x.idx").write_bytes(b"\0\0\x08\x01\0\0\x10\0" + bytes(4096))
    with pytest.raises(
        DataError, match=r"the array \[4096\] of its header has 4096 bytes \(4 KiB\), over the limit of 1 K"
    ):
        pd.idx(tmp_path / "x.idx", max_bytes=1024)
    assert len(pd.idx(tmp_path / "x.idx", max_bytes=4096)) == 4096
    (tmp_path / "x.bin").write_bytes(bytes(3073 * 2))
    with pytest.raises(DataError, match="over the limit"):
        pd.cifar([tmp_path / "x.bin"] * 3, max_bytes=3073 * 5)
    assert len(pd.cifar([tmp_path / "x.bin"] * 3, max_bytes=3073 * 6)) == 6


# -- arrays, pictures, samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [b"\x03" + bytes(4) + b"\xff" * 8, b"\xff" + b"\0\0\0\1" * 255])
def test_idx_shapes_that_no_array_has(tmp_path: Path, shape: bytes) -> None:
    (tmp_path / "x.idx").write_bytes(b"\0\0\x08" + shape + b"1")
    with pytest.raises(DataError, match=r"x\.idx, at byte \d+: "):
        pd.idx(tmp_path / "x.idx")


def test_damaged_arrays_name_the_byte(tmp_path: Path) -> None:
    raw = gzip.compress(RNG.bytes(3073 * 20))
    (tmp_path / "x.bin.gz").write_bytes(flip(raw, -6))
    with pytest.raises(
        DataError, match=r"x\.bin\.gz, at byte 61460 of the decompressed data .*: .*incorrect data check"
    ):
        pd.cifar(tmp_path / "x.bin.gz")
    (tmp_path / "x.idx.gz").write_bytes(flip(gzip.compress(b"\0\0\x08\x01\0\0\0\x05hello"), -6))
    with pytest.raises(DataError, match=r"x\.idx\.gz, at byte 13 of the decompressed data .*: .*incorrect data check"):
        pd.idx(tmp_path / "x.idx.gz")


def laid_out(layout: bytes, values: bytes = b"") -> bytes:
    return struct.pack("<8sHI", b"paceline", 1, len(layout)) + layout + values


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"paceline",
        pd.encode_sample((1, 2))[:-1],
        pd.encode_sample((1, 2)) + b"x",
        pd.encode_sample((1, 2)).replace(b"paceline\1", b"paceline\2"),
        laid_out(b""),
        laid_out(b"[" * 5000),
        laid_out(b'"what"'),
        laid_out(b"5", bytes(8)),
        laid_out(b'{"what":[]}'),
        laid_out(b'{"list":5}'),
        laid_out(b'{"list":[],"tuple":[]}'),
        laid_out(b'{"bytes":-1}'),
        laid_out(b'{"bytes":99999999999}'),
        laid_out(b'{"str":1}', b"\xff"),
        laid_out(b'{"array":["<f4",5]}'),
        laid_out(b'{"array":["O",[1]]}', bytes(8)),
        laid_out(b'{"array":["<f4,<f4",[1]]}', bytes(8)),
        laid_out(b'{"array":["<f4",[-1]]}'),
        laid_out(b'{"array":["<f4",[0,9999999999999999999]]}'),
        laid_out(b'{"tensor":[">i2",[1]]}', b"ab"),
    ],
)
def test_bytes_that_are_no_sample(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(DataError, match="Not a packed sample"):
        pd.decode_sample(raw)
    with pd.Writer(tmp_path / "x.tfrecord") as writer:
        for record in (raw, raw, pd.encode_sample((1, 2))):
            writer.write(record)
    pipeline = pd.files([tmp_path / "x.tfrecord"]).records().map_and_batch(pd.decode_sample, 2, on_error="skip")
    assert [batch[0].tolist() for batch in pipeline] == [[1]]
    assert pipeline.lost == 2


def test_a_cached_pass_that_is_damaged_is_never_decoded(tmp_path: Path) -> None:
    path = tmp_path / "pass"
    write_pass(path, [{"x": number} for number in range(9)])
    raw = path.read_bytes()
    assert read_pass(path) == [{"x": number} for number in range(9)]
    for bad in (b"", raw[:-1], raw[:50], flip(raw, 9), flip(raw, 3), flip(raw, -2), raw[:8] + b"[" * 4000, raw + b"x"):
        path.write_bytes(bad)
        with pytest.raises(DataError, match="is damaged"):
            read_pass(path)


@pytest.mark.parametrize(
    "index",
    [b"0 -5\n-5 26\n", b"0 99999999999999999999999\n", b"0 9223372036854775807\n", b"0 5\n5 16\n", b"0 1 " * 9999],
)
def test_an_index_that_lies_is_not_believed(tmp_path: Path, index: bytes) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(recorded([b"12345"]))
    Path(f"{path}.index").write_bytes(index)
    assert tfrecord.read_index(path) is None
    assert list(pd.indexed(path)) == [b"12345"]


def test_a_record_that_no_file_can_hold(tmp_path: Path) -> None:
    for number, raw in enumerate((record_head(1 << 62), gzip.compress(record_head(1 << 62)))):
        path = tmp_path / f"{number}.tfrecord"
        path.write_bytes(recorded([b"first"]) + raw + bytes(9) if not number else raw)
        with pytest.raises(DataError, match=r"ends in the middle|more than the file has"):
            list(pd.files([path]).records())
    block = bytes(1 << 20)
    (tmp_path / "x").write_bytes(deflated(recorded([b"first"]) + record_head(1 << 40), block, 2, 31))
    pipeline = pd.files([tmp_path / "x"]).records(on_error="skip")
    assert (list(pipeline), pipeline.lost) == ([b"first"], 1)


def test_pictures_that_would_start_a_program_are_not_opened() -> None:
    image = pytest.importorskip("PIL.Image")
    raw = io.BytesIO()
    image.new("RGB", (8, 8)).save(raw, "eps")
    with pytest.raises(DataError, match="cannot identify image file"):
        pd.decode_image(raw.getvalue())


def test_a_picture_over_the_limit_says_what_to_type() -> None:
    image = pytest.importorskip("PIL.Image")
    for kind in ("png", "jpeg"):
        raw = io.BytesIO()
        image.new("RGB", (100, 50)).save(raw, kind)
        with pytest.raises(
            DataError, match=r"\(100 × 50 pixels\) has 15000 bytes .*, over the limit of 14.6 KiB"
        ) as told:
            pd.decode_image(raw.getvalue(), max_bytes=14_999)
        assert "data.decode_image(…, max_bytes=1 << 20)" in told.value.advice
        assert pd.decode_image(raw.getvalue(), max_bytes=15_000).shape == (50, 100, 3)
        with pytest.raises(DataError, match=r"resized from 100 × 50 \(200 × 100 pixels\)"):
            pd.decode_image(raw.getvalue(), shorter=100, max_bytes=15_000)
        assert pd.decode_image(raw.getvalue(), mode="L", max_bytes=5_000).shape == (50, 100)
