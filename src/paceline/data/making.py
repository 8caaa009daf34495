"""Where a pipeline begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from paceline.data.numbered import IndexedRecords
from paceline.data.pictures import find_pictures, read_cifar, read_idx
from paceline.data.pipeline import Pipeline
from paceline.data.places import find
from paceline.data.sources import Arrays, Items, of_dataset
from paceline.errors import UsageError


def arrays(*columns: Any) -> Pipeline:
    """Samples are rows: `arrays(x, y)` gives pairs, `arrays({"image": x, "label": y})` dictionaries, `arrays(x)` rows
    of x. A batch is one gather."""
    return Pipeline(Arrays(columns[0] if len(columns) == 1 else columns), title="arrays")


def items(things: Sequence[Any]) -> Pipeline:
    """A list of anything."""
    return Pipeline(Items(things), title="items")


def dataset(source: Any) -> Pipeline:
    """A torch dataset: map-style or iterable."""
    if isinstance(source, IterableDataset) or not hasattr(source, "__getitem__"):
        return stream(lambda: iter(source))
    return Pipeline(of_dataset(source), title="dataset")


def stream(make: Callable[[], Iterable[Any]]) -> Pipeline:
    """What `make()` gives each epoch: a generator function's samples. To go on in the middle of it, and with several
    workers, what others had is made and dropped: it must give the same samples each time."""
    return Pipeline(Items([None], lambda _: "the stream"), title="stream").interleave(lambda _: make(), cycle=1)


def files(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Pipeline:
    """Paths: of a pattern (`train-*.tfrecord`), or a list. Sorted, so that all workers see the same."""
    found = find(pattern)
    return Pipeline(Items(found, lambda index: found[index]), title="files")


def lines(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Pipeline:
    """The lines of text files."""
    return files(pattern).lines()


def idx(*paths: str | os.PathLike[str]) -> Pipeline:
    """The arrays of idx files: `idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")` gives pairs."""
    return arrays(*(read_idx(path) for path in paths))


def cifar(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, labels: int = 1) -> Pipeline:
    """Images (3, 32, 32) and labels of CIFAR's binary files; `labels=2` for CIFAR-100."""
    return arrays(*read_cifar(find(pattern), labels=labels))


def image_folder(folder: str | os.PathLike[str]) -> Pipeline:
    """Paths and labels of a folder that has a folder for each class. Decode them with `pd.decode_image` in a map."""
    found, _ = find_pictures(folder)
    return Pipeline(Items(found, lambda index: found[index][0]), title="image_folder")


def indexed(pattern: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Pipeline:
    """The records of TFRecord files as things that can be asked for by index: shuffled as a whole, counted, resumed
    at once. For files on this machine that have an index beside them (pd.Writer, `paceline data pack`) or are plain."""
    source = IndexedRecords(find(pattern))
    return Pipeline(source, title="indexed")


def mix(pipelines: Sequence[Pipeline], weights: Sequence[float] | None = None, *, seed: int = 0) -> Pipeline:
    """Samples of several pipelines, drawn by weight (equally), until all have ended."""
    weights = [1.0] * len(pipelines) if weights is None else list(weights)
    if not pipelines or len(weights) != len(pipelines) or min(weights) <= 0:
        raise UsageError(
            f"Asked to mix {len(pipelines)} pipelines by the weights {weights}.", advice="Give each a weight above 0."
        )
    return Pipeline(None, title="mix", made_of=("mix", tuple(pipelines), (tuple(weights), seed)))
