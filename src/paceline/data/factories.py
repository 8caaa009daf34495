"""The functions that begin a pipeline: `data.arrays`, `data.files`, `data.indexed`, …"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from paceline.data.error_policy import Policy
from paceline.data.formats.images import find_images
from paceline.data.pipeline import Pipeline
from paceline.data.planning.stages import at_least
from paceline.data.size_limits import LINE, RECORD
from paceline.data.sources.image_sets import read_cifar, read_idx
from paceline.data.sources.indexed_tfrecord import IndexedRecords
from paceline.data.sources.memory import Arrays, Items, of_dataset
from paceline.data.storage import find
from paceline.errors import UsageError


def arrays(*columns: Any) -> Pipeline:
    """Samples are rows: `arrays(x, y)` gives pairs, `arrays({"image": x, "label": y})` dictionaries, `arrays(x)` rows
    of x. A batch is one gather."""
    return Pipeline(Arrays(columns[0] if len(columns) == 1 else columns), title="arrays")


def items(things: Sequence[Any]) -> Pipeline:
    """The items of a list, or of any object with a length and indices."""
    return Pipeline(Items(things), title="items")


def dataset(source: Any) -> Pipeline:
    """A torch dataset: map-style or iterable."""
    if isinstance(source, IterableDataset) or not hasattr(source, "__getitem__"):
        return stream(lambda: iter(source))
    return Pipeline(of_dataset(source), title="dataset")


def stream(make: Callable[[], Iterable[Any]]) -> Pipeline:
    """The samples of the iterable that `make()` returns each epoch, for example of a generator. After resuming, and on
    several workers, the samples of other workers are made and dropped, so `make()` must give the same samples each
    time."""
    return Pipeline(Items([None], lambda _: "the stream"), title="stream").interleave(lambda _: make(), cycle=1)


def files(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Pipeline:
    """Paths of a pattern (`train-*.tfrecord`), sorted so that all workers see the same order, or of a list."""
    found = find(pattern)
    return Pipeline(Items(found, lambda index: found[index]), title="files")


def lines(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    on_error: Policy = "raise",
    max_bytes: int = LINE,
) -> Pipeline:
    """The lines of text files. `max_bytes`: refuses a longer line."""
    return files(pattern).lines(on_error=on_error, max_bytes=max_bytes)


def idx(*paths: str | os.PathLike[str], max_bytes: int | None = None) -> Pipeline:
    """The arrays of idx files: `idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")` gives pairs.
    `max_bytes`: refuses a larger array (default: half of the available memory)."""
    at_least(1, max_bytes=max_bytes)
    return arrays(*(read_idx(path, max_bytes) for path in paths))


def cifar(
    pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    labels: int = 1,
    max_bytes: int | None = None,
) -> Pipeline:
    """Images (3, 32, 32) and labels of CIFAR's binary files; `labels=2` for CIFAR-100. `max_bytes`: refuses files that
    are larger in total, decompressed (default: half of the available memory)."""
    at_least(1, max_bytes=max_bytes, labels=labels)
    return arrays(*read_cifar(find(pattern), labels=labels, max_bytes=max_bytes))


def image_folder(folder: str | os.PathLike[str]) -> Pipeline:
    """Paths and labels of a folder that has a folder for each class. Decode them with `data.decode_image` in a map."""
    found, _ = find_images(folder)
    return Pipeline(Items(found, lambda index: found[index][0]), title="image_folder")


def indexed(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, max_bytes: int = RECORD) -> Pipeline:
    """The records of TFRecord files by index: shuffled as a whole, counted, resumed at once. For files on this machine
    that have an index file (data.Writer, `paceline data pack`) or are not compressed. `max_bytes`: refuses a larger
    record."""
    at_least(1, max_bytes=max_bytes)
    source = IndexedRecords(find(pattern), max_bytes)
    return Pipeline(source, title="indexed")


def mix(pipelines: Sequence[Pipeline], weights: Sequence[float] | None = None, *, seed: int = 0) -> Pipeline:
    """Samples of several pipelines, drawn by weight (default: equal weights), until all have ended."""
    weights = [1.0] * len(pipelines) if weights is None else list(weights)
    if not pipelines or len(weights) != len(pipelines) or min(weights) <= 0:
        raise UsageError(
            f"mix() got {len(pipelines)} pipelines and the weights {weights}.",
            advice="Give at least one pipeline, and each pipeline a weight above 0.",
        )
    return Pipeline(None, title="mix", made_of=("mix", tuple(pipelines), (tuple(weights), seed)))
