"""Tar shards, idx, CIFAR, folders of pictures, packed texts, and files behind an address."""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data.formats import images as pictures
from paceline.errors import DataError, PacelineError, UsageError


def tarred(members: dict[str, bytes], *, format: int = tarfile.PAX_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=format) as tar:
        tar.addfile(tarfile.TarInfo("folder/"))
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


MEMBERS = {
    "a/0001.jpg": b"picture" * 100,
    "a/0001.cls": b"3",
    "a/0002.jpg": b"",
    "a/0002.seg.PNG": b"mask",
    "x" * 120 + ".txt": b"long",
    "ü/0003.json": b"{}",
}
SAMPLES = [
    {"__key__": "a/0001", "jpg": b"picture" * 100, "cls": b"3"},
    {"__key__": "a/0002", "jpg": b"", "seg.png": b"mask"},
    {"__key__": "x" * 120, "txt": b"long"},
    {"__key__": "ü/0003", "json": b"{}"},
]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("packed", [False, True])
def test_tar_shards(tmp_path: Path, format: int, packed: bool) -> None:
    raw = tarred(MEMBERS, format=format)
    path = tmp_path / ("shard.tar.gz" if packed else "shard.tar")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert list(pd.files([path]).records()) == SAMPLES
    assert list(pd.files([path]).records().shard(1, 2)) == SAMPLES[1::2]


def test_long_names_that_are_split(tmp_path: Path) -> None:
    name = "folder" * 20 + "/" + "name" * 10 + ".jpg"
    (tmp_path / "shard.tar").write_bytes(tarred({name: b"1"}, format=tarfile.USTAR_FORMAT))
    assert next(iter(pd.files([tmp_path / "shard.tar"]).records()))["__key__"] == name[:-4]


def test_a_shard_that_ends_in_the_middle_is_named(tmp_path: Path) -> None:
    raw = tarred(MEMBERS)
    path = tmp_path / "cut.tar"
    path.write_bytes(raw[:2600])
    with pytest.raises(DataError, match=r"cut\.tar: sample \d, at byte \d+: the file ends in the middle"):
        list(pd.files([path]).records())
    pipeline = pd.files([path]).records(on_error="skip")
    assert all(sample in SAMPLES for sample in pipeline)
    assert pipeline.lost == 1


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), max_size=4), st.integers(0, 9000))
def test_fuzzed_shards_never_crash(tmp_path: Path, changes: list[tuple[int, int]], cut: int) -> None:
    raw = bytearray(tarred(MEMBERS, format=tarfile.GNU_FORMAT))
    for at, value in changes:
        raw[at % len(raw)] = value
    (tmp_path / "fuzzed.tar").write_bytes(raw[: max(1, len(raw) - cut)])
    for policy in ("skip", "raise"):
        try:
            list(pd.files([tmp_path / "fuzzed.tar"]).records(on_error=policy))
        except PacelineError as error:
            said = error.message
            assert policy == "raise", said


def test_webdataset_writes_what_we_read(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "shard.tar")) as writer:
        for number in range(5):
            writer.write({"__key__": f"{number:04}", "txt": f"text {number}", "cls": number})
    found = list(pd.files([tmp_path / "shard.tar"]).records())
    assert [(s["__key__"], s["txt"], s["cls"]) for s in found] == [
        (f"{n:04}", f"text {n}".encode(), str(n).encode()) for n in range(5)
    ]


def idx_of(array: Any) -> bytes:
    code = {"uint8": 8, "int8": 9, "int16": 11, "int32": 12, "float32": 13, "float64": 14}[array.dtype.name]
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, code, array.ndim]) + shape + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32", "float32", "float64"])
def test_idx_files(tmp_path: Path, kind: str) -> None:
    images = np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(kind)
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx_of(images)))
    (tmp_path / "labels").write_bytes(idx_of(np.array([4, 5], np.uint8)))
    [(x, y)] = list(pd.idx(tmp_path / "images.gz", tmp_path / "labels").batch(2))
    assert np.array_equal(x.numpy(), images)
    assert y.tolist() == [4, 5]


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x09abc", b"\0\0\x08\x03" + b"\xff" * 12, b"text"]
)
def test_damaged_idx_files_are_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "bad").write_bytes(raw)
    with pytest.raises(DataError, match="bad"):
        pd.idx(tmp_path / "bad")
    (tmp_path / "bad.gz").write_bytes(gzip.compress(raw + b"1" * 99)[:-9])
    with pytest.raises(DataError, match=r"bad\.gz, at byte \d+ of the decompressed data"):
        pd.idx(tmp_path / "bad.gz")


def test_cifar_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (6, 3073), np.uint8)
    for number in range(2):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(rows[number * 3 : number * 3 + 3].tobytes())
    [(images, labels)] = list(pd.cifar(str(tmp_path / "*.bin")).batch(6))
    assert images.shape == (6, 3, 32, 32)
    assert images.flatten(1).numpy().tolist() == rows[:, 1:].tolist()
    assert labels.tolist() == rows[:, 0].tolist()
    (tmp_path / "hundred.bin").write_bytes(rng.integers(0, 100, (2, 3074), np.uint8).tobytes())
    assert len(list(pd.cifar(tmp_path / "hundred.bin", labels=2))) == 2
    with pytest.raises(DataError, match="not a whole number of CIFAR records"):
        pd.cifar(tmp_path / "hundred.bin")


def picture(color: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    raw = io.BytesIO()
    image.new("RGB", (64, 48), (color, 0, 0)).save(raw, "png")
    return raw.getvalue()


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for name, color in (("cat/2.png", 20), ("cat/deep/1.png", 10), ("ant/3.png", 30), ("ant/notes.txt", 0)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(picture(color))

    def load(sample: tuple[str, int]) -> Any:
        path, label = sample
        return pd.decode_image(path), label

    [(images, labels)] = list(pd.image_folder(tmp_path).map_and_batch(load, 3))
    assert images.shape == (3, 48, 64, 3)
    assert images[:, 0, 0, 0].tolist() == [30, 20, 10]
    assert labels.tolist() == [0, 1, 1]
    (tmp_path / "ant" / "3.png").write_bytes(picture(1)[:60])
    with pytest.raises(DataError, match=r"ant/3\.png: The image cannot be decoded"):
        list(pd.image_folder(tmp_path).map_and_batch(load, 3))
    with pytest.raises(UsageError, match="has no images"):
        pd.image_folder(tmp_path / "ant")
    with pytest.raises(UsageError, match="not a folder"):
        pd.image_folder(tmp_path / "none")


def test_a_jpeg_may_be_decoded_smaller() -> None:
    image = pytest.importorskip("PIL.Image")
    raw = io.BytesIO()
    image.new("RGB", (640, 480), (9, 9, 9)).save(raw, "jpeg")
    assert pd.decode_image(raw.getvalue()).shape == (480, 640, 3)
    assert pd.decode_image(raw.getvalue(), at_least=100).shape == (120, 160, 3)
    assert pd.decode_image(raw.getvalue(), mode="L").shape == (480, 640)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"subsampling": 0, "quality": 30}])
def test_jpegs_are_decoded_as_by_pillow_to_the_last_bit(mode: str, how: dict[str, Any]) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("simplejpeg")
    small = image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8))
    raw = io.BytesIO()
    small.resize((201, 151), image.Resampling.BICUBIC).convert(mode).save(raw, "jpeg", **how)
    quick = pictures._decode_jpeg(raw.getvalue())
    assert (quick is None) == (mode == "CMYK")  # of four colours there is more than one reading
    expected = np.asarray(image.open(raw).convert("RGB"))
    assert np.array_equal(pd.decode_image(raw.getvalue()), expected)
    with pytest.raises(DataError, match="cannot be decoded"):
        pd.decode_image(raw.getvalue()[:700])


def test_a_jpeg_that_says_it_is_huge_is_refused() -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("simplejpeg")
    raw = io.BytesIO()
    image.new("RGB", (16, 16)).save(raw, "jpeg")
    data = raw.getvalue()
    size = data.index(b"\xff\xc0") + 5  # height and width, two bytes each
    huge = data[:size] + b"\xff\xff\xff\xff" + data[size + 4 :]
    assert pictures._decode_jpeg(huge) is None
    with pytest.raises(DataError, match="cannot be decoded"):
        pd.decode_image(huge)


@pytest.mark.parametrize("by_torch", [True, False])
@pytest.mark.parametrize(("size", "mode"), [((500, 375), "RGB"), ((320, 400), "RGB"), ((300, 256), "L")])
def test_decoded_resized_and_cropped_as_pillow_does_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], mode: str, by_torch: bool
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr("paceline.data.formats.images._torch_resizes_faster", lambda: by_torch)
    small = image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8))
    raw = io.BytesIO()
    small.resize(size, image.Resampling.BICUBIC).save(raw, "jpeg", quality=95)
    picture = image.open(io.BytesIO(raw.getvalue())).convert(mode)
    scale = 256 / min(size)
    whole = picture.resize((round(size[0] * scale), round(size[1] * scale)), image.Resampling.BILINEAR)
    left, top = (whole.width - 224) // 2, (whole.height - 224) // 2
    expected = np.asarray(whole.crop((left, top, left + 224, top + 224))).astype(int)
    found = pd.decode_image(raw.getvalue(), mode=mode, shorter=256, crop=224)
    assert found.shape == expected.shape
    off = np.abs(found.astype(int) - expected)
    assert np.mean(off > 1) < 0.02  # at the edges Pillow looks beyond what is kept
    assert off.max() < 30
    assert pd.decode_image(raw.getvalue(), mode=mode, shorter=100).shape[:2] == (
        round(size[1] * 100 / min(size)),
        round(size[0] * 100 / min(size)),
    )
    with pytest.raises(DataError, match="fewer than crop=300"):
        pd.decode_image(raw.getvalue(), shorter=256, crop=300)


def test_texts_that_are_packed(tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * (number * 37 % 5000) for number in range(500)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert list(pd.lines(tmp_path / "a.txt.gz")) == lines
    assert list(pd.lines(tmp_path / "a.txt.gz").shard(2, 3)) == lines[2::3]
    (tmp_path / "cut.txt.gz").write_bytes((tmp_path / "a.txt.gz").read_bytes()[:-400])
    with pytest.raises(DataError, match=r"cut\.txt\.gz, after line"):
        list(pd.lines(tmp_path / "cut.txt.gz"))


def test_files_behind_an_address(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for number in range(3):
        with pd.Writer(tmp_path / "file") as writer:
            writer.write(f"record {number}".encode())
        memory.pipe(f"/data/train-{number}.tfrecord", (tmp_path / "file").read_bytes())
    assert list(pd.files("memory://data/train-*.tfrecord").records()) == [b"record 0", b"record 1", b"record 2"]
    with pytest.raises(DataError, match="cannot be opened"):
        list(pd.files(["memory://data/none"]).records())
    with pytest.raises(DataError, match="cannot be opened"):
        list(pd.files(["nothing://data/none"]).records())
    memory.rm("/data", recursive=True)


def test_files_of_all_kinds_are_known_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("one\ntwo\n")
    (tmp_path / "2.tar").write_bytes(tarred({"a.x": b"1"}))
    with pd.Writer(tmp_path / "3-of-9") as writer:
        writer.write(b"three")
    paths = [tmp_path / name for name in ("1.txt", "2.tar", "3-of-9")]
    assert list(pd.files(paths).records(parallel=1)) == ["one", "two", {"__key__": "a", "x": b"1"}, b"three"]
    with pytest.raises(UsageError, match="format='parquet'"):
        list(pd.files(paths).records("parquet"))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_are_dealt_by_file_or_by_record(tmp_path: Path, world: int) -> None:
    """By file where there are enough: then no worker opens another's file."""
    for count in (2, 12):
        whole = []
        for number in range(count):
            with pd.Writer(tmp_path / f"{count}-{number:02}") as writer:
                for record in range(5):
                    writer.write(f"{number}:{record}".encode())
                    whole.append(f"{number}:{record}".encode())
        parts = [list(pd.files(str(tmp_path / f"{count}-??")).records().shard(rank, world)) for rank in range(world)]
        assert sorted(itertools.chain(*parts)) == sorted(whole)
        files = [{record.split(b":")[0] for record in part} for part in parts]
        if count == 12:
            assert sum(map(len, files)) == count
        else:
            assert max(map(len, parts)) - min(map(len, parts)) <= count
