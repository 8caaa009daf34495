"""Random damage to small valid files of every format: right samples, or an error of ours, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data.formats import tfrecord
from paceline.errors import DataError

RNG = np.random.default_rng(0)
Damage = tuple[str, int, int]
damages = st.lists(
    st.tuples(
        st.sampled_from(["set", "flip", "cut", "drop", "zeros", "insert", "again"]),
        st.integers(0, 1 << 20),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


def damaged(raw: bytes, changes: list[Damage]) -> bytes:
    made = bytearray(raw)
    for kind, at, value in changes:
        at %= max(1, len(made))
        if not made:
            break
        if kind == "set":
            made[at] = value
        elif kind == "flip":
            made[at] ^= 1 << value % 8
        elif kind == "cut":
            del made[at:]
        elif kind == "drop":
            del made[at : at + value]
        elif kind == "zeros":
            made[at : at + value] = bytes(len(made[at : at + value]))
        elif kind == "insert":
            made[at:at] = bytes([value]) * (value % 16 + 1)
        else:
            made[at:at] = made[at : at + value]
    return bytes(made)


def tarred() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(4):
            for name in (f"{number}.bin", f"{number}.{'long' * 40}.ü"):
                info = tarfile.TarInfo(name)
                info.size = 40
                tar.addfile(info, io.BytesIO(RNG.bytes(40)))
    return raw.getvalue()


TAR = tarred()
IDX = b"\0\0\x0b\x02\0\0\0\x06\0\0\0\x0a" + RNG.bytes(120)
CIFAR = RNG.bytes(3073 * 2)
PIXELS = RNG.integers(0, 256, (12, 16, 3), np.uint8)
RECORDS = [RNG.bytes(size) for size in (20, 20, 0, 300, 20)]
FRAMED = b"".join(head + record + tail for record in RECORDS for head, tail in [tfrecord.frame(record)])
TEXT = "\n".join(json.dumps({"n": number, "text": "ü" * number}) for number in range(20)).encode()
FILES: dict[str, bytes] = {
    "x.tar": TAR,
    "x.tar.gz": gzip.compress(TAR),
    "x.tgz": gzip.compress(TAR[:4096]) + gzip.compress(TAR[4096:]),
    "x.tfrecord": FRAMED,
    "x.tfrecord.gz": gzip.compress(FRAMED),
    "x.tfrecord.zlib": zlib.compress(FRAMED),
    "x.jsonl": TEXT,
    "x.jsonl.gz": gzip.compress(TEXT),
    "x.txt.zz": zlib.compress(TEXT),
}
PACKED = (".gz", ".tgz", ".zlib", ".zz")
ALLOWED = 48 << 20  # bytes of memory: files are small, so are the samples


def bounded(function: Callable[[], Any]) -> Any:
    """What it gives, or the DataError that it raised; anything else that it raises is a failure."""
    tracemalloc.start()
    try:
        found = function()
    except DataError as error:
        found = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < ALLOWED
    return found


def read(path: Path, **options: Any) -> list[Any]:
    return list(pd.files([path]).records(parallel=1, **options))


@pytest.mark.parametrize("name", FILES)
@given(changes=damages)
def test_files_of_records(tmp_path: Path, name: str, changes: list[Damage]) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name])
    whole = read(path)
    raw = damaged(FILES[name], changes)
    path.write_bytes(raw)
    found = bounded(lambda: read(path))
    if isinstance(found, DataError):
        assert str(path) in found.message
        assert "byte" in found.message
    elif name.endswith(PACKED):
        # Whatever was changed and not found out was nothing that counts: a name or a time in gzip's header.
        assert found == whole
    pipeline = pd.files([path]).records(parallel=1, on_error="skip")
    kept = bounded(lambda: list(pipeline))
    assert isinstance(kept, list)
    assert (pipeline.lost > 0) == isinstance(found, DataError)
    if "tfrecord" in name:
        assert all(record in RECORDS for record in kept)  # each has a checksum


@pytest.mark.parametrize("name", ["x.idx", "x.idx.gz", "x.bin", "x.bin.gz"])
@given(changes=damages)
def test_files_of_arrays(tmp_path: Path, name: str, changes: list[Damage]) -> None:
    raw = IDX if ".idx" in name else CIFAR
    path = tmp_path / name
    open_it = pd.idx if ".idx" in name else pd.cifar
    packed = gzip.compress(raw) if name.endswith(".gz") else raw
    path.write_bytes(packed)
    whole = list(open_it(path).batch(10))
    path.write_bytes(damaged(packed, changes))
    found = bounded(lambda: list(open_it(path, max_bytes=1 << 20).batch(10)))
    if isinstance(found, DataError):
        assert str(path) in found.message
    elif name.endswith(".gz"):
        assert str(found) == str(whole)


def picture(kind: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    raw = io.BytesIO()
    image.fromarray(PIXELS).resize((64, 48)).save(raw, kind)
    return raw.getvalue()


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm"])
@given(changes=damages, how=st.sampled_from([{}, {"shorter": 20}, {"shorter": 20, "crop": 10}, {"at_least": 10}]))
@pytest.mark.filterwarnings("ignore")  # Pillow warns of much that it then reads
def test_pictures(kind: str, changes: list[Damage], how: dict[str, Any]) -> None:
    whole = picture(kind)
    pd.decode_image(whole, **how)  # imports what it needs, which takes memory, too
    raw = damaged(whole, changes)
    found = bounded(lambda: pd.decode_image(raw, max_bytes=1 << 20, **how))
    assert isinstance(found, DataError) or found.nbytes <= 1 << 20


SAMPLE = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": (1, "text", b"bytes", None), "z": [True, 0.5, -9]}
EXAMPLE = {"image": b"123", "labels": [1, 2, 300], "x": [0.5], "many": list(range(70)), "words": ["a", "b"]}


@given(changes=damages)
def test_records_that_are_decoded(changes: list[Damage]) -> None:
    sample, example = pd.encode_sample(SAMPLE), pd.encode_example(EXAMPLE)
    bounded(lambda: pd.decode_sample(damaged(sample, changes)))
    bounded(lambda: pd.decode_example(damaged(example, changes)))
    batch = pd.items([damaged(sample, changes), sample, sample]).map_and_batch(pd.decode_sample, 3, on_error="skip")
    found = bounded(lambda: list(batch))
    assert isinstance(found, (list, DataError))


@given(changes=damages, start=st.integers(0, 5))
def test_an_index_beside_a_file(tmp_path: Path, changes: list[Damage], start: int) -> None:
    """It is a hint: with any other the same records are read."""
    path = tmp_path / "x.tfrecord"
    with pd.Writer(path) as writer:
        for record in RECORDS:
            writer.write(record)
    index = tfrecord.index_of(path)
    index.write_bytes(damaged(index.read_bytes(), changes))
    assert list(pd.files([path]).records().skip(start)) == RECORDS[start:]
    assert list(pd.indexed(path)) == RECORDS
