"""Throughput of input pipelines: paceline.data against torch's DataLoader, tf.data, WebDataset and tfrecord.

    python benchmarks/data.py                         # all sections, a few minutes
    python benchmarks/data.py arrays records          # some sections
    python benchmarks/data.py arrays --data DIR       # on Fashion-MNIST's idx files in DIR
    pip install tensorflow webdataset tfrecord        # the peers; missing ones are left out

    arrays     shuffled batches of 256 of 60,000 pictures in memory          aim: 20 × DataLoader, 10 × tf.data
    records    TFRecord files of 4 KiB records, raw, checksums checked       aim: 2 × tfrecord (which does not check
                                                                             them), 0.8 × tf.data
    examples   TFRecord files of Examples, decoded                           aim: 2 × tfrecord, 0.8 × tf.data
    pictures   JPEG from shards, decoded, resized and cropped                aim: 1.3 × DataLoader, 1.0 × tf.data,
                                                                             1.5 × WebDataset
    overlap    a training step of T ms, with 0.9 T ms to prepare its batch   aim: 1.05 T a step; see data_overlap.py
    autotune   work that waits, work that decodes, pure Python work          aim: 0.9 × the best setting by hand

Sides alternate; DataLoader and WebDataset count with their best number of processes in each round.

Figures, 2 cores of a VM (median of 5 rounds, smallest – largest):

    arrays     34 (32 – 50) × DataLoader, 32 (31 – 41) × tf.data, 0.72 (0.51 – 1.17) × index_select
    records    1.84 (1.19 – 2.22) × tfrecord in 7 rounds; in an earlier run 2.8 (2.4 – 3.3) × tf.data. A record takes
               1.5 to 2.2 µs: 0.5 for the kernel's copy, 0.5 for the checksum, 0.3 for the copy into bytes. tfrecord
               takes 2.2 to 3.4 µs, without a checksum, and reuses one buffer
    examples   1.45 (0.84 – 1.77) × tfrecord in 7 rounds; in an earlier run 0.93 (0.74 – 1.06) × tf.data
    pictures   1.69 (1.56 – 1.83) × DataLoader, 1.03 (0.90 – 8.4) × tf.data, 1.72 (1.47 – 2.12) × WebDataset
    overlap    1.02 (0.84 – 1.18) T for work that releases the GIL, 1.01 (0.84 – 1.50) T for work that holds the GIL
    autotune   1.07 (0.98 – 1.18) of the best by hand for work that waits (0.88 in another run: autotuning takes 63
               threads, by hand 64), 0.98 (0.95 – 1.02) for work that decodes, 1.02 (0.85 – 1.03) for pure Python
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import data_sides
import numpy as np
from data_overlap import overlap
from data_sides import endlessly, rate
from side_by_side import in_turn, ratio

import paceline.data as pd

Figures = dict[str, list[float]]


def compare(sides: dict[str, Any], args: argparse.Namespace, unit: str) -> Figures:
    loops: dict[str, Iterator[int]] = {}

    def measured(name: str, loop: Any) -> Callable[[], float]:
        if isinstance(loop, data_sides.Elsewhere):
            return lambda: loop.rate(args.warm_up, args.seconds)
        return lambda: rate(loops, name, loop, args.warm_up, args.seconds)

    figures = in_turn({name: measured(name, loop) for name, loop in sides.items()}, args.rounds, unit)
    for peer in ("DataLoader", "WebDataset"):
        tried = [values for name, values in figures.items() if name.startswith(f"{peer} ")]
        if tried:
            figures[peer] = [max(values) for values in zip(*tried, strict=True)]
    for name, values in figures.items():
        if name != "paceline" and name[-1] not in "0123456789":
            print(f"  paceline / {name}: {ratio(figures['paceline'], values)}")
    loops.clear()
    return figures


def arrays(args: argparse.Namespace, folder: Path) -> Figures:
    if args.data:
        names = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
        from paceline.data.sources.image_sets import read_idx

        images, labels = (read_idx(Path(args.data) / name) for name in names)
    else:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (60_000, 28, 28), np.uint8)
        labels = rng.integers(0, 10, 60_000)
    return compare(data_sides.arrays(images, labels.astype(np.int64), 256), args, "pictures/s")


def records(args: argparse.Namespace, folder: Path) -> Figures:
    pattern = data_sides.write_records(folder, files=8, records=args.records, size=4096)
    return compare(data_sides.records(pattern, 256), args, "records/s")


def examples(args: argparse.Namespace, folder: Path) -> Figures:
    pattern = data_sides.write_examples(folder, files=8, records=args.records, size=4096)
    return compare(data_sides.examples(pattern, 256), args, "records/s")


def pictures(args: argparse.Namespace, folder: Path) -> Figures:
    pattern, tars = data_sides.write_pictures(folder, args.pictures, shards=16)
    return compare(data_sides.pictures(pattern, tars, 64), args, "pictures/s")


# -- autotune ----------------------------------------------------------------------------------------------------------


def waits(number: int) -> Any:
    time.sleep(0.001)
    return np.zeros(16, np.float32)


BLOB = zlib.compress(np.random.default_rng(0).integers(0, 40, 200_000).astype(np.uint8).tobytes(), 6)


def decodes(number: int) -> Any:
    return np.frombuffer(zlib.decompress(BLOB), np.uint8)[:4096]


def is_python(number: int) -> Any:
    total = 0
    for value in range(5000):
        total += value * number
    return np.full(16, total % 97, np.float32)


def autotune(args: argparse.Namespace, folder: Path) -> Figures:
    found: Figures = {}
    for function, by_hand in (
        (waits, [("threads", n) for n in (2, 8, 16, 32, 64)]),
        (decodes, [("threads", n) for n in (1, 2, 3, 4)]),
        (is_python, [("threads", 2), *(("processes", n) for n in (1, 2, 3))]),
    ):
        print(f"  {function.__name__}:")
        loops: dict[str, Iterator[int]] = {}

        reports: list[Any] = []

        def made(function: Any = function, kind: Any = "auto", parallel: Any = "auto", reports: Any = reports) -> Any:
            pipeline = pd.items(list(range(1 << 20))).map_and_batch(function, 16, kind=kind, parallel=parallel)
            reports.extend([pipeline.report] if kind == "auto" else [])
            return pipeline

        sides = {"auto": (endlessly(made, len), args.tune_time)}
        for kind, parallel in by_hand:
            loop = endlessly(lambda kind=kind, parallel=parallel, made=made: made(kind=kind, parallel=parallel), len)
            sides[f"{kind} {parallel}"] = (loop, args.warm_up)

        def measured(name: str, loops: Any = loops, sides: Any = sides) -> Callable[[], float]:
            loop, warm_up = sides[name]
            return lambda: rate(loops, name, loop, warm_up, args.seconds)

        figures = in_turn({name: measured(name) for name in sides}, args.rounds, "samples/s")
        # The one setting that is best over all rounds: a user cannot change the setting in each round.
        best = max((name for name in sides if name != "auto"), key=lambda name: statistics.median(figures[name]))
        print(f"  auto / the best by hand ({best}): {ratio(figures['auto'], figures[best])}")
        print("  " + str(reports[0]()).splitlines()[-2])
        found |= {f"{function.__name__} {name}": values for name, values in figures.items()}
    return found


SECTIONS = {
    "arrays": arrays,
    "records": records,
    "examples": examples,
    "pictures": pictures,
    "overlap": overlap,
    "autotune": autotune,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the throughput of input pipelines.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="sections to run, from: " + ", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each side in each round")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds of each side before its first round")
    parser.add_argument("--tune-time", type=float, default=15.0, help="seconds that autotuning may take")
    parser.add_argument("--records", type=int, default=2500, help="records in each of 8 files")
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--data", metavar="DIR", help="folder of Fashion-MNIST's idx files; default: drawn pictures")
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
    args = parser.parse_args()
    unknown = set(args.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}; choose from: {', '.join(SECTIONS)}")
    missing = [name for name in ("tensorflow", "webdataset", "tfrecord") if not data_sides.installed(name)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}")
    figures = {}
    for name in args.sections or SECTIONS:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = SECTIONS[name](args, Path(folder))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
