"""Packs image folders and datasets into a few TFRecord files with an index, and checks such files.

Images become Examples with the feature names of TensorFlow's own datasets; samples of a dataset are written by
`data.encode_sample`. Records are distributed over the files in shuffled order, so that each file has all classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.data.error_policy import LostSamples
from paceline.data.formats.images import decode_image, find_images
from paceline.data.formats.registry import format_of, reader_of
from paceline.data.formats.tf_example import decode_example, encode_example
from paceline.data.formats.tfrecord import Writer, index_of, read_index
from paceline.data.size_limits import IMAGE, RECORD, too_large
from paceline.errors import DataError, PacelineError, UsageError

TOLD = "pack.json"  # describes the files of the folder
SIZE = 128 << 20  # bytes of a file, about
FEW = 16  # files at least, if there are enough records, so that files can be assigned to workers
AT_ONCE = 1024  # images that wait for a thread
ENOUGH = 64  # records of a file, at least


class Packed(msgspec.Struct, kw_only=True):
    """The files that were written."""

    folder: str
    kind: str  # "images": images as Examples; "samples": as data.encode_sample writes them
    files: list[str]
    records: int
    bytes: int
    classes: list[str] = []
    left_out: list[str] = []  # images that cannot be decoded: path and reason


def pack_images(
    folder: str,
    out: str,
    *,
    shards: int | None,
    shuffle: bool,
    seed: int,
    said: Callable[[int, int], None],
    max_bytes: int = RECORD,
    decode: bool = False,
    lost: Callable[[str], None] = lambda text: None,
) -> Packed:
    """Packs the images of a folder that has a folder for each class. Image files are copied unchanged. `decode`: each
    is decoded first, if there is a decoder; one that cannot be decoded is left out, and `lost` is called with its path
    and the reason."""
    found, classes = find_images(folder)
    left_out: list[str] = []
    if decode and find_spec("PIL") is not None:
        good = _decodable([path for path, _ in found], left_out, lost, said)
        found = [image for image, is_good in zip(found, good, strict=True) if is_good]
        if not found:
            raise DataError(
                f"{folder}: none of its {len(left_out)} images can be decoded.",
                advice="Write the images again, or pack them as they are: --no-decode",
            )
    total = sum(_size_of(path, max_bytes) for path, _ in found)

    def record(index: int) -> bytes:
        path, label = found[index]
        return encode_example(
            {
                "image/encoded": Path(path).read_bytes(),
                "image/format": Path(path).suffix[1:].lower(),
                "image/class/label": label,
                "image/class/text": classes[label],
                "image/filename": os.path.relpath(path, folder),
            }
        )

    count = shards or files_for(len(found), total)
    written = _write(record, len(found), out, count, shuffle, seed, said)
    return _tell(Packed(folder=out, kind="images", classes=classes, left_out=left_out, **written))


def _decodable(
    paths: Sequence[str], left_out: list[str], lost: Callable[[str], None], said: Callable[[int, int], None]
) -> list[bool]:
    """Whether each image can be decoded. Decodes in threads: the decoders release the interpreter's lock."""

    def trouble(path: str) -> str:
        try:
            decode_image(Path(path).read_bytes())
        except DataError as error:
            return f"{path}: {error.message}"
        except OSError as error:
            return f"{path}: the file cannot be read: {error.strerror}."
        return ""

    good = []
    with ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as pool:
        for start in range(0, len(paths), AT_ONCE):
            for found in pool.map(trouble, paths[start : start + AT_ONCE]):
                if found:
                    left_out.append(found)
                    lost(found)
                good.append(not found)
                said(len(good), len(paths))
    return good


def _size_of(path: str, max_bytes: int) -> int:
    """The size of an image file, which becomes one record."""
    size = os.path.getsize(path)
    if size > max_bytes:
        raise too_large(path, size, max_bytes, "--max-bytes {}", otherwise="Or remove the file from the folder.")
    return size


def pack_samples(
    samples: Sequence[Any],
    out: str,
    *,
    shards: int | None,
    shuffle: bool,
    seed: int,
    said: Callable[[int, int], None] = lambda done, total: None,
) -> Packed:
    """Packs the samples of a dataset: any object with a length and indices."""
    from paceline.data.formats.sample import encode

    if not len(samples):
        raise UsageError("The dataset to pack has no samples.", advice="Give a dataset with at least one sample.")

    def record(index: int) -> bytes:
        try:
            return encode(samples[index])
        except PacelineError as error:
            raise type(error)(f"Sample {index}: {error.message}", advice=error.advice) from None
        except Exception as error:
            raise DataError(
                f"Sample {index} of the dataset cannot be made: {type(error).__name__}: {error}",
                advice=f"See where it comes from, in Python: dataset[{index}]",
            ) from error

    total = len(record(0)) * len(samples)
    count = shards or files_for(len(samples), total)
    written = _write(record, len(samples), out, count, shuffle, seed, said)
    return _tell(Packed(folder=out, kind="samples", **written))


def pack(
    samples: Sequence[Any],
    folder: str | os.PathLike[str],
    *,
    shards: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> Packed:
    """Writes a dataset's samples into TFRecord files with an index, in a new folder. To read them:
    `data.files("FOLDER/*.tfrecord").records().map(data.decode_sample)`."""
    return pack_samples(samples, os.fspath(folder), shards=shards, shuffle=shuffle, seed=seed)


def files_for(records: int, size: int) -> int:
    """The number of files for `records` records of `size` bytes in total."""
    return max(1, -(-size // SIZE), min(FEW, records // ENOUGH))


def _write(
    record: Callable[[int], bytes],
    records: int,
    out: str,
    count: int,
    shuffle: bool,
    seed: int,
    said: Callable[[int, int], None],
) -> dict[str, Any]:
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{out} is not empty.", advice="Give a new folder: --out DIR")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror}.", advice="Give another folder: --out DIR") from None
    count = min(count, records)
    order = np.random.default_rng(seed).permutation(records) if shuffle else np.arange(records)
    names, size, done = [], 0, 0
    for number in range(count):
        name = f"part-{number:05}-of-{count:05}.tfrecord"
        with Writer(folder / name) as writer:
            # Shuffled records go to the files in turn, so that files differ by at most one record; otherwise each file
            # gets a contiguous part.
            mine = (
                order[number::count] if shuffle else order[records * number // count : records * (number + 1) // count]
            )
            for index in mine.tolist():
                writer.write(record(index))
                done += 1
                said(done, records)
        names.append(name)
        size += writer.bytes
    return {"files": names, "records": records, "bytes": size}


def _tell(packed: Packed) -> Packed:
    path = Path(packed.folder) / TOLD
    path.write_bytes(msgspec.json.format(msgspec.json.encode(packed)))
    return packed


# -- checking ----------------------------------------------------------------------------------------------------------


class Checked(msgspec.Struct, kw_only=True):
    """The result of checking one file."""

    path: str
    format: str
    records: int
    bytes: int
    damaged: list[str] = []
    index: str = ""  # "right", "missing", or "wrong"


def files_to_check(paths: Sequence[str]) -> list[str]:
    """The given files, and the record files of the given folders."""
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = [str(file) for file in sorted(Path(path).iterdir()) if _holds_records(file)]
            if not inside:
                raise UsageError(f"{path} has no record files.", advice="Give files, or a folder of record files.")
            found += inside
        elif os.path.exists(path):
            found.append(path)
        else:
            raise UsageError(f"{path} does not exist.", advice="Give files, or a folder of record files.")
    return found


def _holds_records(path: Path) -> bool:
    return path.is_file() and (".tfrecord" in path.name or format_of(path) == "tar") and path.suffix != ".index"


def check(path: str, *, decode: bool = False, max_bytes: int | None = None) -> Checked:
    """Reads a whole file. With `decode`, its images are decoded as well. `max_bytes`: the limit of a record and of a
    decoded image; None: the defaults of both."""
    losses = LostSamples()
    checked = Checked(path=path, format=format_of(path), records=0, bytes=os.path.getsize(path))
    try:
        for chunk in reader_of("auto", "skip", losses, max_bytes)(path, 0):
            if decode:
                for number, record in enumerate(chunk, checked.records):
                    _decode(checked, number, record, max_bytes or IMAGE)
            checked.records += len(chunk)
    except PacelineError as error:
        checked.damaged.append(error.message)
    checked.damaged += losses.reasons
    if checked.format == "tfrecord":
        there = index_of(path).exists()
        offsets = read_index(path) if there else None
        fits = offsets is not None and (len(offsets) == checked.records or checked.damaged)
        checked.index = "missing" if not there else "right" if fits else "wrong"
    return checked


def _decode(checked: Checked, number: int, record: Any, max_bytes: int) -> None:
    for name, raw in _images(record):
        try:
            decode_image(raw, max_bytes=max_bytes)
        except DataError as error:
            checked.damaged.append(f"{checked.path}: record {number}, {name}: {error.message}")


def _images(record: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(record, dict):
        yield from ((name, raw) for name, raw in record.items() if f".{name}" in (".jpg", ".jpeg", ".png", ".webp"))
        return
    try:
        found = decode_example(record)
    except DataError:
        return
    for raw in found.get("image/encoded", []):
        yield "image/encoded", raw


def told_of(folder: str) -> Packed | None:
    """The description that `pack` left in a folder; None if there is none."""
    try:
        return msgspec.json.decode((Path(folder) / TOLD).read_bytes(), type=Packed)
    except (OSError, ValueError, RecursionError):
        return None
