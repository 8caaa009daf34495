"""Input pipelines: a chain of stages that loads, transforms, shuffles and batches samples.

    from paceline import data

    train = data.arrays(images, labels).shuffle(seed=0).batch(256).to("cuda")
    for epoch in range(10):
        for images, labels in train:
            ...

The order of samples depends only on the seed; `state()` and `restore()` resume in the middle of an epoch; `shard()`
gives each worker its part. See docs/data.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.data.factories import (
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
    from paceline.data.formats.images import decode_image
    from paceline.data.formats.pack import pack
    from paceline.data.formats.sample import decode as decode_sample
    from paceline.data.formats.sample import encode as encode_sample
    from paceline.data.formats.tf_example import decode_example, encode_example
    from paceline.data.formats.tfrecord import Writer
    from paceline.data.pipeline import Pipeline
    from paceline.data.stages.augment import ColorJitter, Crop, Cutout, Flip, Mixup, Normalize
    from paceline.data.torch_loader import drop_in

__all__ = [
    "ColorJitter",
    "Crop",
    "Cutout",
    "Flip",
    "Mixup",
    "Normalize",
    "Pipeline",
    "Writer",
    "arrays",
    "cifar",
    "dataset",
    "decode_example",
    "decode_image",
    "decode_sample",
    "drop_in",
    "encode_example",
    "encode_sample",
    "files",
    "idx",
    "image_folder",
    "indexed",
    "items",
    "lines",
    "mix",
    "pack",
    "stream",
]

_HOMES = {
    **{name: f"stages.augment.{name}" for name in ("ColorJitter", "Crop", "Cutout", "Flip", "Mixup", "Normalize")},
    "Pipeline": "pipeline.Pipeline",
    "Writer": "formats.tfrecord.Writer",
    "drop_in": "torch_loader.drop_in",
    "decode_example": "formats.tf_example.decode_example",
    "encode_example": "formats.tf_example.encode_example",
    "decode_image": "formats.images.decode_image",
    "decode_sample": "formats.sample.decode",
    "pack": "formats.pack.pack",
    "encode_sample": "formats.sample.encode",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used, because the command line packs and checks files without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'paceline.data' has no attribute {name!r}")
    import importlib

    module, _, own = _HOMES.get(name, f"factories.{name}").rpartition(".")
    found = globals()[name] = getattr(importlib.import_module(f"paceline.data.{module}"), own)
    return found  # kept in globals(), because decoders look their names up for every record
