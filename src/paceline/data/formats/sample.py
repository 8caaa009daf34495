"""Packed samples: nested tuples, lists and dictionaries of arrays, tensors, numbers, strings and bytes, as one record.

    magic, version, size of the layout    14 bytes
    layout                                JSON: the structure, with the type, shape and size of each leaf
    values                                raw bytes of each leaf, one after the other, little-endian numbers

Samples of one layout begin with the same bytes, so that a batch of them is decoded after one comparison of these bytes
(`decode_together`). Decoding never runs code from the record, and a size is used only if the record has that
many bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from paceline.data.formats.collate import Allocate
from paceline.data.size_limits import RECORD, too_large
from paceline.errors import DataError, UsageError
from paceline.script import tree

MAGIC, VERSION = b"paceline", 1
HEAD = struct.Struct("<8sHI")
EXPANDS = 64  # bytes of memory that a byte of the layout takes when decoded, at most
KEPT = 64  # layouts that are cached
SHORT = 64 << 10  # bytes of a layout that is cached, at most
FIXED = {"none": 0, "bool": 1, "int": 8, "float": 8}  # bytes of leaves whose size follows from their kind
NUMBERS = {"int": struct.Struct("<q"), "float": struct.Struct("<d")}


Read = Callable[[bytes], Any]  # from a record to the value in it


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of a sample, and its position in the record."""

    kind: str
    begin: int
    end: int
    dtype: Any = None  # of an array
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of all samples that begin with the bytes `header`."""

    header: bytes
    nest: Any  # the samples' structure, with the number of a leaf in place of its value
    leaves: list[Leaf]
    size: int  # bytes of a record
    read: Read  # decodes a record of this size


def encode(sample: Any) -> bytes:
    """Packs a sample. Raises UsageError if the sample has a value of a type that cannot be packed."""
    values: list[Any] = []
    layout = msgspec.json.encode(_describe(sample, values.append))
    return b"".join((HEAD.pack(MAGIC, VERSION, len(layout)), layout, *values))


def decode(raw: bytes, *, max_bytes: int = RECORD) -> Any:
    """Unpacks a sample. Raises DataError if `raw` is not a packed sample. `max_bytes`: refuses a larger sample."""
    try:
        layout = layout_of(raw, max_bytes)
        if len(raw) != layout.size:
            raise ValueError(f"the layout describes {layout.size} bytes, but the record has {len(raw)}")
        if len(raw) > max_bytes:
            raise too_large("The sample", len(raw), max_bytes, "data.decode_sample(…, max_bytes={})")
        return layout.read(raw)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(
            f"Not a packed sample: {reason}.", advice="Use a decoder that matches the record type."
        ) from None


_layouts: dict[bytes, Layout] = {}  # by header; shared by threads: at worst two threads parse the same header
_last: Layout | None = None  # most records have the layout of the record before


def layout_of(raw: bytes, max_bytes: int = RECORD) -> Layout:
    """The layout that a record begins with. Raises errors of many types if the record is not a packed sample."""
    global _last
    if (found := _last) is not None and raw.startswith(found.header):
        return found
    if len(raw) < HEAD.size or not raw.startswith(MAGIC):
        raise ValueError(f"the record does not begin with {MAGIC!r}")
    _, version, size = HEAD.unpack_from(raw)
    if version != VERSION:
        raise ValueError(f"the record has format version {version}, and this version of paceline reads {VERSION}")
    start = HEAD.size + size
    if start > len(raw):
        raise ValueError("the record ends within its layout")
    header = raw[:start]
    found = _layouts.get(header)
    if found is None:
        if EXPANDS * size > max_bytes:
            what = "The layout of the sample, decoded,"
            raise too_large(what, EXPANDS * size, max_bytes, "data.decode_sample(…, max_bytes={})")
        found = _parse(header)
        if len(header) <= SHORT:
            if len(_layouts) >= KEPT:
                _layouts.clear()
            _layouts[header] = found
    _last = found
    return found


def _parse(header: bytes) -> Layout:
    leaves: list[Leaf] = []
    at = len(header)

    def leaf(kind: str, size: int, dtype: Any = None, shape: tuple[int, ...] = ()) -> int:
        nonlocal at
        leaves.append(Leaf(kind, at, at + size, dtype, shape))
        at += size
        return len(leaves) - 1

    def nest(described: Any) -> Any:
        if isinstance(described, str):
            return leaf(described, FIXED[described])
        [(kind, inner)] = described.items()
        if kind in ("array", "tensor"):
            name, shape = inner
            dtype = np.dtype(name)
            swapped = kind == "tensor" and not dtype.isnative  # torch has no such tensors
            if dtype.kind not in "biufc" or swapped or not all(map(_is_size, shape)):
                raise ValueError(f"its layout has an impossible {kind} of type {name} and shape {shape}")
            return leaf(kind, math.prod(shape) * dtype.itemsize, dtype, tuple(shape))
        if kind in ("str", "bytes", "integer") and _is_size(inner):
            return leaf(kind, inner)
        if kind == "dict":
            return {key: nest(item) for key, item in inner.items()}
        if kind not in ("tuple", "list"):
            raise ValueError(f"its layout has a value of the unknown kind {kind!r}")
        items = [nest(item) for item in inner]
        return tuple(items) if kind == "tuple" else items

    nested = nest(msgspec.json.decode(header[HEAD.size :]))
    return Layout(header, nested, leaves, at, _reader(nested, leaves))


def _reader(nest: Any, leaves: list[Leaf]) -> Read:
    if isinstance(nest, int):
        return _leaf_reader(leaves[nest])
    if isinstance(nest, dict):
        named = [(key, _reader(item, leaves)) for key, item in nest.items()]
        return lambda raw: {key: read(raw) for key, read in named}
    items = [_reader(item, leaves) for item in nest]
    if isinstance(nest, list):
        return lambda raw: [read(raw) for read in items]
    return lambda raw: tuple([read(raw) for read in items])


def _leaf_reader(leaf: Leaf) -> Read:
    kind, begin, end, dtype, shape = leaf.kind, leaf.begin, leaf.end, leaf.dtype, leaf.shape
    if dtype is not None:
        count = (end - begin) // dtype.itemsize

        def array(raw: bytes) -> Any:
            return np.frombuffer(raw, dtype, count, begin).reshape(shape).copy() if count else np.empty(shape, dtype)

        return array if kind == "array" else lambda raw: torch.from_numpy(array(raw))
    if kind in NUMBERS:
        unpack = NUMBERS[kind].unpack_from
        return lambda raw: unpack(raw, begin)[0]
    if kind == "bool":
        return lambda raw: bool(raw[begin])
    if kind == "none":
        return lambda raw: None
    if kind == "bytes":
        return lambda raw: raw[begin:end]
    if kind == "str":
        return lambda raw: str(raw[begin:end], "utf-8")
    return lambda raw: int.from_bytes(raw[begin:end], "little", signed=True)


def _is_size(size: Any) -> bool:
    return type(size) is int and size >= 0


def _describe(value: Any, put: Callable[[bytes], object]) -> Any:
    """The description of a value for the layout; `put` receives the value's bytes."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        put(value.tobytes())
        return {"array": (value.dtype.str, value.shape)}
    if isinstance(value, bool):
        put(b"\1" if value else b"\0")
        return "bool"
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            put(NUMBERS["int"].pack(value))
            return "int"
        put(raw := value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        return {"integer": len(raw)}
    if isinstance(value, float):
        put(NUMBERS["float"].pack(value))
        return "float"
    if isinstance(value, str):
        put(raw := value.encode())
        return {"str": len(raw)}
    if isinstance(value, bytes):
        put(value)
        return {"bytes": len(value)}
    if value is None:
        return "none"
    if type(value) is tuple:
        return {"tuple": [_describe(item, put) for item in value]}
    if type(value) is list:
        return {"list": [_describe(item, put) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(item, put) for key, item in value.items()}}
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return _describe(np.asarray(value), put)
    if isinstance(value, torch.Tensor) and value.dtype is not torch.bfloat16:
        return {"tensor": _describe(value.detach().cpu().numpy(), put)["array"]}
    raise UsageError(
        f"A sample with a {type(value).__name__} cannot be packed.",
        advice="Use tuples, lists and dictionaries of arrays, tensors, numbers, strings and bytes.",
    )


# -- samples of one layout, as a batch --------------------------------------------------------------------------------


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
