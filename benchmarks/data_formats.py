"""Speed of our parsers of tar shards and tf.train.Example against tarfile and the protobuf package (upb).

    pip install "paceline[bench]"
    python benchmarks/data_formats.py

Figures: the library's CPU time divided by ours, interleaved in one run, median and quartiles of 15 rounds, on two
shared cores (Python 3.11, protobuf 7.36 with upb):

    tar, 4000 samples of 200 B + 2 B          2.37 × (2.14 – 2.50)
    tar, 2000 samples of 10 kB + 2 B          2.09 × (1.96 – 2.19)
    tar, 200 samples of 100 kB + 2 B          1.49 × (1.45 – 1.55)
    tar, 20 samples of 4 MB + 2 B             1.05 × (1.03 – 1.08)
    Example, label and 1 kB image             2.83 × (2.66 – 2.96)
    Example, as ImageNet, 100 kB image        2.25 × (2.21 – 2.52)
    Example, 40 numbers                       1.90 × (1.63 – 2.16)
    Example, 128 tokens and weights           0.61 × (0.60 – 0.64)
    Example, 10,000 floats                   68.24 × (62.23 – 70.21)
    Example, 10,000 integers                  1.98 × (1.79 – 2.05)

Both parsers stay. Tar: 2 × as fast if parsing dominates; with files of 100 kB and more, both sides mostly copy bytes.
Example: 1.9 × or more in five of six cases; short packed lists of integers are slower, because the overhead of numpy
calls dominates.
"""

from __future__ import annotations

import io
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from paceline.data.error_policy import LostSamples
from paceline.data.formats import tar
from paceline.data.formats.tf_example import decode_example, encode_example

ROUNDS = 15
RNG = np.random.default_rng(0)
SHARDS = {  # samples of a shard, bytes of an image, bytes of a label
    "tar, 4000 samples of 200 B + 2 B": (4000, 200),
    "tar, 2000 samples of 10 kB + 2 B": (2000, 10_000),
    "tar, 200 samples of 100 kB + 2 B": (200, 100_000),
    "tar, 20 samples of 4 MB + 2 B": (20, 4_000_000),
}
EXAMPLES: dict[str, tuple[int, dict[str, Any]]] = {  # number of records, and features
    "Example, label and 1 kB image": (2000, {"image": RNG.bytes(1000), "label": 7}),
    "Example, as ImageNet, 100 kB image": (
        300,
        {
            "image/encoded": RNG.bytes(100_000),
            "image/format": "jpeg",
            "image/class/label": 412,
            "image/class/text": "crane",
            "image/filename": "n02012849_1.jpg",
        },
    ),
    "Example, 40 numbers": (
        1000,
        {f"feature {n}": [n / 7] if n % 2 else [n * 1000] for n in range(40)},
    ),
    "Example, 128 tokens and weights": (
        1000,
        {"tokens": RNG.integers(0, 30_000, 128), "weights": RNG.random(128, np.float32)},
    ),
    "Example, 10,000 floats": (200, {"x": RNG.random(10_000, np.float32), "label": 3}),
    "Example, 10,000 integers": (200, {"x": RNG.integers(0, 1 << 40, 10_000), "label": 3}),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, (count, size) in SHARDS.items():
            path = Path(folder) / "shard.tar"
            write_shard(path, count, size)
            assert list(by_tarfile(path)) == list(by_us(path))
            print(f"{name:40} {compared(lambda p=path: drain(by_us(p)), lambda p=path: drain(by_tarfile(p)))}")
    parse = by_protobuf(example_class())
    for name, (times, features) in EXAMPLES.items():
        raw = encode_example(features)
        ours, theirs = decode_example(raw), parse(raw)
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
        raws = [raw] * times
        print(
            f"{name:40} {compared(lambda r=raws: drain(map(decode_example, r)), lambda r=raws: drain(map(parse, r)))}"
        )


def compared(ours: Callable[[], None], theirs: Callable[[], None]) -> str:
    """The library's CPU time divided by ours: median and quartiles. Wall time would include other programs."""
    ratios, mine = [], []
    for _ in range(ROUNDS):
        mine.append(seconds(ours))
        ratios.append(seconds(theirs) / mine[-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:5.2f} × ({low:.2f} – {high:.2f}), ours {statistics.median(mine) * 1e3:.1f} ms"


def seconds(function: Callable[[], None]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def drain(values: Iterator[Any]) -> None:
    for _ in values:
        pass


# -- tar ---------------------------------------------------------------------------------------------------------------


def write_shard(path: Path, count: int, size: int) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for number in range(count):
            for ending, body in (("jpg", RNG.bytes(size)), ("cls", b"%02d" % (number % 100))):
                info = tarfile.TarInfo(f"{number:06}.{ending}")
                info.size = len(body)
                shard.addfile(info, io.BytesIO(body))


def by_us(path: Path) -> Iterator[dict[str, Any]]:
    for chunk in tar.read(path, 0, "raise", LostSamples()):
        yield from chunk


def by_tarfile(path: Path) -> Iterator[dict[str, Any]]:
    """The same samples, without limits and without positions for error messages."""
    sample: dict[str, Any] = {}
    with tarfile.open(path, "r:") as shard:
        while (info := shard.next()) is not None:
            shard.members.clear()  # otherwise tarfile keeps every member in memory
            if not info.isreg():
                continue
            folder, _, last = info.name.rpartition("/")
            stem, _, ending = last.partition(".")
            key = f"{folder}/{stem}" if folder else stem
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            file = shard.extractfile(info)
            assert file is not None
            sample[ending.lower()] = file.read()
            sample["__key__"] = key
    if sample:
        yield sample


# -- Example -----------------------------------------------------------------------------------------------------------


def example_class() -> Any:
    """The tf.train.Example class, built from a descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="bench", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, kind in (
        ("BytesList", kinds.TYPE_BYTES),
        ("FloatList", kinds.TYPE_FLOAT),
        ("Int64List", kinds.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, label=kinds.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")), 1
    ):
        feature.field.add(
            name=name,
            number=number,
            label=kinds.LABEL_OPTIONAL,
            type=kinds.TYPE_MESSAGE,
            type_name=f".bench.{kind}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    message = {"label": kinds.LABEL_OPTIONAL, "type": kinds.TYPE_MESSAGE}
    entry.field.add(name="value", number=2, type_name=".bench.Feature", **message)
    features.field.add(
        name="feature",
        number=1,
        label=kinds.LABEL_REPEATED,
        type=kinds.TYPE_MESSAGE,
        type_name=".bench.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type_name=".bench.Features", **message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Example"))


def by_protobuf(example: Any) -> Callable[[bytes], dict[str, Any]]:
    def parse(raw: bytes) -> dict[str, Any]:
        """Each feature's values as `decode_example` gives them."""
        found: dict[str, Any] = {}
        for name, feature in example.FromString(raw).features.feature.items():
            match feature.WhichOneof("kind"):
                case "bytes_list":
                    found[name] = list(feature.bytes_list.value)
                case "float_list":
                    values = feature.float_list.value
                    found[name] = np.fromiter(values, np.float32, len(values))
                case "int64_list":
                    values = feature.int64_list.value
                    found[name] = np.fromiter(values, np.int64, len(values))
        return found

    return parse


if __name__ == "__main__":
    main()
