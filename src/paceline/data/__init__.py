"""Input pipelines: a chain of plain stages that keeps a device fed.

    import paceline.data as pd

    train = pd.arrays(images, labels).shuffle(seed=0).batch(256).to("cuda")
    for epoch in range(10):
        for images, labels in train:
            ...

The order of samples depends on the seed alone; `state()` and `restore()` go on in the middle of an epoch; `shard()`
gives each worker its part. See docs/data.md.
"""

from __future__ import annotations

from paceline.data.example import decode_example, encode_example
from paceline.data.making import (
    arrays,
    cifar,
    dataset,
    files,
    idx,
    image_folder,
    indexed,
    items,
    lines,
    mix,
    stream,
)
from paceline.data.nests import decode as decode_sample
from paceline.data.nests import encode as encode_sample
from paceline.data.pictures import decode_image
from paceline.data.pipeline import Pipeline
from paceline.data.tfrecord import Writer

__all__ = [
    "Pipeline",
    "Writer",
    "arrays",
    "cifar",
    "dataset",
    "decode_example",
    "decode_image",
    "decode_sample",
    "encode_example",
    "encode_sample",
    "files",
    "idx",
    "image_folder",
    "indexed",
    "items",
    "lines",
    "mix",
    "stream",
]
