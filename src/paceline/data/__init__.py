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

from paceline.data.making import arrays, dataset, files, items, lines, mix, stream
from paceline.data.pipeline import Pipeline

__all__ = ["Pipeline", "arrays", "dataset", "files", "items", "lines", "mix", "stream"]
