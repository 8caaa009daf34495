"""The sides of benchmarks/data.py: the same work by paceline.data, DataLoader, tf.data, WebDataset and tfrecord.

Each side is a function that returns a new loop. Packages that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import sys
import tarfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import paceline.data as pd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
Loop = Callable[[], Iterator[int]]  # yields the number of samples of each batch, endlessly


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def endlessly(make: Callable[[], Any], count: Callable[[Any], int]) -> Loop:
    """Endless epochs over the result of `make`, which is called once."""

    def loop() -> Iterator[int]:
        made = make()
        while True:
            for batch in made:
                yield count(batch)

    return loop


def rate(loops: dict[str, Iterator[int]], name: str, loop: Loop, warm_up: float, seconds: float) -> float:
    """Samples per second. A running loop continues, so that start-up is not measured."""
    stream = loops.get(name)
    if stream is None:
        stream = loops[name] = loop()
        until = time.perf_counter() + warm_up
        while time.perf_counter() < until:
            next(stream)
    began, samples = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        samples += next(stream)
    return samples / passed


class Elsewhere:
    """A side in its own process, which runs only on request: for packages that cannot be imported together."""

    def __init__(self, make: Callable[..., Loop], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, its = context.Pipe()
        self._process = context.Process(target=_serve, args=(its, make, args), daemon=True)
        self._process.start()

    def rate(self, warm_up: float, seconds: float) -> float:
        self._pipe.send((warm_up, seconds))
        return self._pipe.recv()


def _serve(pipe: Any, make: Callable[..., Loop], args: tuple[Any, ...]) -> None:
    loops: dict[str, Iterator[int]] = {}
    while True:
        try:
            warm_up, seconds = pipe.recv()
        except EOFError:
            return
        pipe.send(rate(loops, "it", make(*args), warm_up, seconds))


# -- arrays in memory --------------------------------------------------------------------------------------------------


def arrays(images: Any, labels: Any, batch: int) -> dict[str, Loop]:
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    sides = {
        "paceline": endlessly(lambda: pd.arrays(x, y).shuffle(seed=0).batch(batch).prefetch(), lambda b: len(b[1]))
    }
    for workers in (0, 1, 2):
        sides[f"DataLoader {workers}"] = endlessly(
            lambda workers=workers: DataLoader(
                TensorDataset(x, y), batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            ),
            lambda b: len(b[1]),
        )
    sides["drop_in"] = endlessly(
        lambda: pd.drop_in(DataLoader(TensorDataset(x, y), batch, shuffle=True)), lambda b: len(b[1])
    )
    if installed("tensorflow"):
        sides["tf.data"] = endlessly(lambda: _tf_arrays(images, labels, batch), lambda b: int(b[1].shape[0]))

    def bare() -> Iterator[int]:
        while True:
            for index in torch.randperm(len(x)).split(batch):
                chosen = x.index_select(0, index), y.index_select(0, index)
                yield len(chosen[1])

    return sides | {"index_select": bare}


def _tf_arrays(images: Any, labels: Any, batch: int) -> Any:
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((images, labels))
    return pairs.shuffle(len(images), seed=0).batch(batch).prefetch(tf.data.AUTOTUNE)


# -- records -----------------------------------------------------------------------------------------------------------


def write_records(folder: Path, files: int, records: int, size: int) -> str:
    rng = np.random.default_rng(0)
    for number in range(files):
        with pd.Writer(folder / f"records-{number:02}.tfrecord") as writer:
            for _ in range(records):
                writer.write(rng.bytes(size))
    return str(folder / "records-*.tfrecord")


def records(pattern: str, batch: int) -> dict[str, Loop]:
    sides = {"paceline": endlessly(lambda: pd.files(pattern).records().batch(batch).prefetch(), len)}
    if installed("tfrecord"):
        sides["tfrecord"] = endlessly(lambda: _Tfrecord(pattern), lambda record: 1)
    if installed("tensorflow"):
        sides["tf.data"] = endlessly(lambda: _tf_records(pattern, batch), lambda b: int(b.shape[0]))
    return sides


class _Tfrecord:
    """The raw iterator of tfrecord, which verifies no checksums."""

    def __init__(self, pattern: str) -> None:
        self.paths = sorted(Path(pattern).parent.glob(Path(pattern).name))

    def __iter__(self) -> Iterator[Any]:
        # tfrecord and TensorFlow need different protobuf versions; raw records need neither.
        stub: Any = types.ModuleType("example_pb2")
        stub.__getattr__ = lambda name: object
        sys.modules.setdefault("tfrecord.example_pb2", stub)
        from tfrecord.reader import tfrecord_iterator

        for path in self.paths:
            yield from tfrecord_iterator(str(path))


def _tf_records(pattern: str, batch: int) -> Any:
    import tensorflow as tf

    names = tf.data.Dataset.list_files(pattern, shuffle=False)
    read = names.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    return read.batch(batch).prefetch(tf.data.AUTOTUNE)


def write_examples(folder: Path, files: int, records: int, size: int) -> str:
    rng = np.random.default_rng(0)
    for number in range(files):
        with pd.Writer(folder / f"examples-{number:02}.tfrecord") as writer:
            for label in range(records):
                writer.write(pd.encode_example({"image/encoded": rng.bytes(size), "image/class/label": label}))
    return str(folder / "examples-*.tfrecord")


def decode(record: bytes) -> Any:
    features = pd.decode_example(record)
    return features["image/encoded"][0], int(features["image/class/label"][0])


def examples(pattern: str, batch: int) -> dict[str, Any]:
    def ours() -> Any:
        return pd.files(pattern).records().map_and_batch(decode, batch).prefetch()

    sides: dict[str, Any] = {"paceline": endlessly(ours, lambda b: len(b[1]))}
    if installed("tfrecord"):
        sides["tfrecord"] = Elsewhere(_tfrecord_examples, pattern)
    if installed("tensorflow"):
        sides["tf.data"] = endlessly(
            lambda: _tf_examples(pattern, batch), lambda b: int(b["image/class/label"].shape[0])
        )
    return sides


def _tfrecord_examples(pattern: str) -> Loop:
    import tfrecord

    paths = sorted(str(path) for path in Path(pattern).parent.glob(Path(pattern).name))
    wanted = {"image/encoded": "byte", "image/class/label": "int"}

    def loop() -> Iterator[int]:
        while True:
            for path in paths:
                for _ in tfrecord.tfrecord_loader(path, None, wanted):
                    yield 1

    return loop


def _tf_examples(pattern: str, batch: int) -> Any:
    import tensorflow as tf

    wanted = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    batches = _tf_records(pattern, batch)
    return batches.map(lambda raw: tf.io.parse_example(raw, wanted), num_parallel_calls=tf.data.AUTOTUNE)


# -- pictures ----------------------------------------------------------------------------------------------------------

SIDE, RESIZED, CROP = (500, 375), 256, 224


def write_pictures(folder: Path, count: int, shards: int) -> tuple[str, str]:
    """JPEGs of coloured blobs, as large as ImageNet's, in TFRecord files and in tar files."""
    from PIL import Image

    rng = np.random.default_rng(0)
    raws = []
    for _ in range(min(count, 64)):
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        raw = io.BytesIO()
        small.resize(SIDE, Image.Resampling.BICUBIC).save(raw, "jpeg", quality=90)
        raws.append(raw.getvalue())
    for shard in range(shards):
        numbers = range(shard, count, shards)
        with pd.Writer(folder / f"pictures-{shard:02}.tfrecord") as writer:
            for number in numbers:
                features = {"image/encoded": raws[number % len(raws)], "image/class/label": number % 1000}
                writer.write(pd.encode_example(features))
        with tarfile.open(folder / f"pictures-{shard:02}.tar", "w") as tar:
            for number in numbers:
                for ending, content in (("jpg", raws[number % len(raws)]), ("cls", str(number % 1000).encode())):
                    info = tarfile.TarInfo(f"{number:06}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return str(folder / "pictures-*.tfrecord"), str(folder / "pictures-*.tar")


def load(raw: bytes) -> Any:
    """Decode, resize the shorter side, crop the centre: the same function for all sides but TensorFlow."""
    from PIL import Image

    picture = Image.open(io.BytesIO(raw)).convert("RGB")
    scale = RESIZED / min(picture.size)
    size = round(picture.width * scale), round(picture.height * scale)
    left, top = (size[0] - CROP) // 2, (size[1] - CROP) // 2
    resized = picture.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + CROP, top + CROP))
    return np.asarray(resized).transpose(2, 0, 1)


def load_example(record: bytes) -> Any:
    features = pd.decode_example(record)
    return load(features["image/encoded"][0]), int(features["image/class/label"][0])


def load_ours(record: bytes) -> Any:
    """The same picture by `paceline.data.decode_image`, which decodes only the part that is kept."""
    features = pd.decode_example(record)
    image = pd.decode_image(features["image/encoded"][0], shorter=RESIZED, crop=CROP)
    return image.transpose(2, 0, 1), int(features["image/class/label"][0])


class Pictures(Dataset[Any]):
    """The same records by index, for DataLoader."""

    def __init__(self, pattern: str) -> None:
        from paceline.data.sources.indexed_tfrecord import IndexedRecords
        from paceline.data.storage import find

        self.records = IndexedRecords(find(pattern))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        image, label = load_example(self.records.fetch(index))
        return torch.from_numpy(np.ascontiguousarray(image)), label


def pictures(pattern: str, tars: str, batch: int) -> dict[str, Loop]:
    def ours(load: Callable[[bytes], Any]) -> Any:
        return pd.files(pattern).records().shuffle(512).map_and_batch(load, batch).prefetch()

    record = next(iter(pd.files(pattern).records()))
    off = np.abs(load_ours(record)[0].astype(int) - load_example(record)[0].astype(int)).max()
    print(f"  a picture by pd.decode_image and by Pillow, one step after the other: {off} of 255 apart at most")
    sides = {
        "paceline": endlessly(lambda: ours(load_ours), lambda b: len(b[1])),
        "paceline, Pillow": endlessly(lambda: ours(load_example), lambda b: len(b[1])),
    }
    for workers in (0, 1, 2, 3):
        sides[f"DataLoader {workers}"] = endlessly(
            lambda workers=workers: DataLoader(
                Pictures(pattern), batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            ),
            lambda b: len(b[1]),
        )
    if installed("webdataset"):
        for workers in (1, 2):
            sides[f"WebDataset {workers}"] = endlessly(
                lambda workers=workers: _webdataset(tars, batch, workers), lambda b: len(b[1])
            )
    if installed("tensorflow"):
        sides["tf.data"] = endlessly(lambda: _tf_pictures(pattern, batch), lambda b: int(b[1].shape[0]))
    return sides


def _unpack(sample: dict[str, Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(load(sample["jpg"]))), int(sample["cls"])


def _webdataset(pattern: str, batch: int, workers: int) -> Any:
    import webdataset as wds

    paths = sorted(str(path) for path in Path(pattern).parent.glob(Path(pattern).name))
    made = wds.WebDataset(paths, shardshuffle=len(paths)).shuffle(512).map(_unpack).batched(batch)
    return wds.WebLoader(made, batch_size=None, num_workers=workers, persistent_workers=True)


def _tf_pictures(pattern: str, batch: int) -> Any:
    import tensorflow as tf

    wanted = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decode(record: Any) -> Any:
        features = tf.io.parse_single_example(record, wanted)
        image = tf.io.decode_jpeg(features["image/encoded"], channels=3)
        scale = RESIZED / min(SIDE)
        size = round(SIDE[1] * scale), round(SIDE[0] * scale)
        image = tf.cast(tf.image.resize(image, size), tf.uint8)
        top, left = (size[0] - CROP) // 2, (size[1] - CROP) // 2
        return tf.transpose(image[top : top + CROP, left : left + CROP], (2, 0, 1)), features["image/class/label"]

    names = tf.data.Dataset.list_files(pattern, shuffle=False)
    read = names.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
    made = read.shuffle(512).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return made.batch(batch).prefetch(tf.data.AUTOTUNE)
