"""Decodes packed samples of one layout as a batch: each leaf of the batch is a column of the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.data.formats.collate import Allocate
from paceline.data.formats.sample import Layout, Leaf, layout_of
from paceline.errors import DataError
from paceline.script import tree

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
# Errors of a record that is not a packed sample. The record is then decoded alone, so that the error names it.
NOT_SAMPLES = (DataError, LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


def decode_together(raws: Sequence[bytes], allocate: Allocate) -> Any:
    """The batch of these records; None if their layouts differ: then the caller decodes each record alone."""
    try:
        layout = layout_of(raws[0])
        if not layout.leaves or not all(map(_like(layout), raws)):
            return None
        records = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), layout.size)
        return tree.replace(layout.nest, lambda number: _column(layout.leaves[number], records, allocate))
    except NOT_SAMPLES:
        return None


def _like(layout: Layout) -> Any:
    header, size = layout.header, layout.size
    return lambda raw: type(raw) is bytes and len(raw) == size and raw.startswith(header)


def _column(leaf: Leaf, records: Bytes, allocate: Allocate) -> Any:
    """The values of one leaf, in the form that `collate` gives them."""
    part, kind = records[:, leaf.begin : leaf.end], leaf.kind
    if leaf.dtype is not None:
        native = leaf.dtype.newbyteorder("=")
        made = allocate((len(records), *leaf.shape), torch.from_numpy(np.empty(0, native)).dtype)
        if native == leaf.dtype:
            made.numpy().reshape(-1).view(np.uint8).reshape(part.shape)[...] = part
        else:
            made.numpy()[...] = part.copy().view(leaf.dtype).reshape(made.shape)
        return made
    if kind in ("int", "float"):
        return torch.from_numpy(part.copy().view("<i8" if kind == "int" else "<f8")[:, 0])
    if kind == "bool":
        return torch.from_numpy(part[:, 0] != 0)
    if kind == "none":
        return [None] * len(records)
    if kind == "integer":
        raise OverflowError  # larger than 64 bits: no tensor can hold it
    found = [row.tobytes() for row in part]
    return found if kind == "bytes" else [str(text, "utf-8") for text in found]
