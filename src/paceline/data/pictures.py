"""Pictures: sets that come as arrays (idx, CIFAR), folders of them, and decoding."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.places import open_file
from paceline.errors import DataError, UsageError

Array = np.ndarray[Any, Any]
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")
LARGEST = 1 << 26  # pixels: of what says that it is larger Pillow asks whether that can be true
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> Array:
    """An array of an idx file, as MNIST and Fashion-MNIST come; may be gzipped."""
    raw = _read_whole(path)
    rank = raw[3] if len(raw) > 3 else 0
    if len(raw) < 4 + 4 * rank or raw[:2] != b"\0\0" or raw[2] not in IDX_TYPES or not rank:
        raise DataError(f"{path} is no idx file: it begins with {raw[:4]!r}.", advice="Give the file as it was made.")
    shape = tuple(int.from_bytes(raw[4 + 4 * n : 8 + 4 * n], "big") for n in range(rank))
    dtype = np.dtype(IDX_TYPES[raw[2]])
    need, have = int(np.prod(shape, dtype=object)) * dtype.itemsize, len(raw) - 4 - 4 * rank
    if need != have:
        raise DataError(
            f"{path}: its head says {list(shape)}, {need} bytes, but {have} follow.", advice="Fetch it again."
        )
    array = np.frombuffer(bytearray(raw), dtype, offset=4 + 4 * rank).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def read_cifar(paths: Sequence[str], *, labels: int = 1) -> tuple[Array, Array]:
    """Images (n, 3, 32, 32) and labels of CIFAR's binary files: `labels` bytes before each image, of which the last
    one counts (CIFAR-100 has 2: coarse, fine)."""
    width = labels + 3072
    parts = []
    for path in paths:
        raw = _read_whole(path)
        if not raw or len(raw) % width:
            raise DataError(
                f"{path}: {len(raw)} bytes are no whole number of CIFAR records of {width} bytes.",
                advice="Give the binary version's files, and labels=2 for CIFAR-100.",
            )
        parts.append(np.frombuffer(bytearray(raw), np.uint8).reshape(-1, width))
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    images = np.ascontiguousarray(rows[:, labels:]).reshape(-1, 3, 32, 32)
    return images, rows[:, labels - 1].astype(np.int64)


def _read_whole(path: str | os.PathLike[str]) -> bytes:
    with open_file(path) as file:
        raw = file.read()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be decompressed: {error}.", advice="Fetch it again.") from None


def find_pictures(folder: str | os.PathLike[str]) -> tuple[list[tuple[str, int]], list[str]]:
    """Paths and labels of a folder of folders, one for each class, and the classes' names, all sorted."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"Asked for the pictures in {folder}, but that is no folder.", advice="Give a folder.")
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    found = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if not found:
        raise UsageError(
            f"Asked for the pictures in {folder}, but its {len(classes)} folders hold none.",
            advice="Lay it out as DIR/CLASS/NAME.jpg.",
        )
    return found, classes


def decode_image(
    data: bytes | str | os.PathLike[str],
    *,
    mode: str = "RGB",
    shorter: int | None = None,
    crop: int | None = None,
    at_least: int | None = None,
) -> Array:
    """A picture as an array (height, width, channels) of bytes. `shorter`: resized until its shorter side has so many
    pixels. `crop`: of that the square in the middle; only what is kept of it is made. `at_least`: a JPEG may be decoded
    smaller than it is, as long as its shorter side keeps so many pixels, which takes a fraction of the time."""
    quick = _decode_jpeg(data) if mode == "RGB" and at_least is None else None
    picture: Any = open_image(data) if quick is None else quick
    try:
        if quick is None:
            if at_least is not None and picture.format == "JPEG":
                picture.draft(mode, (at_least, at_least))
            picture = picture.convert(mode) if picture.mode != mode else picture
        if shorter is None and crop is None:
            return np.asarray(picture)
        wide, high = picture.size if quick is None else picture.shape[1::-1]
        scale = 1.0 if shorter is None else shorter / min(wide, high)
        size = round(wide * scale), round(high * scale)
        if mode in ("RGB", "L") and _torch_resizes_faster():
            return _resized(np.array(picture) if quick is None else picture, size, crop)
        return _resized_by_pillow(picture, size, crop)
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"The picture cannot be decoded: {error}.", advice="Write it again, or leave it out.") from None


def _decode_jpeg(data: bytes | str | os.PathLike[str]) -> Array | None:
    """The same pixels as Pillow's in half the time. None where that cannot be had: then Pillow tells why, or can."""
    if not isinstance(data, bytes) or data[:3] != b"\xff\xd8\xff" or (quick := _simplejpeg()) is None:
        return None
    try:
        high, wide, colours, _ = quick.decode_jpeg_header(data)
        if colours not in ("YCbCr", "Gray") or high * wide > LARGEST:
            return None
        pixels: Array = quick.decode_jpeg(data)
        return pixels
    except ValueError:
        return None


@cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _place(size: tuple[int, int], crop: int | None) -> tuple[int, int, int, int]:
    """What is kept of a picture that was made this large: left, top, width, height."""
    wide, high = size
    left, top = (0, 0) if crop is None else ((wide - crop) // 2, (high - crop) // 2)
    if left < 0 or top < 0:
        raise DataError(
            f"The picture has {wide} × {high} pixels, fewer than the {crop} to be kept.",
            advice="Keep fewer, or make it larger before: shorter=N.",
        )
    return left, top, *(size if crop is None else (crop, crop))


def _resized(pixels: Array, size: tuple[int, int], crop: int | None) -> Array:
    import torch
    import torch.nn.functional as F

    left, top, wide, high = _place(size, crop)
    planes = torch.from_numpy(pixels).view(*pixels.shape[:2], -1).permute(2, 0, 1)[None]
    made = F.interpolate(planes, size[::-1], mode="bilinear", antialias=True)
    cut = made[0, :, top : top + high, left : left + wide].permute(1, 2, 0).numpy()
    return cut if pixels.ndim == 3 else cut[:, :, 0]


def _resized_by_pillow(picture: Any, size: tuple[int, int], crop: int | None) -> Array:
    from PIL import Image

    left, top, wide, high = _place(size, crop)
    if isinstance(picture, np.ndarray):
        picture = Image.fromarray(picture)
    across, down = picture.width / size[0], picture.height / size[1]
    box = (left * across, top * down, (left + wide) * across, (top + high) * down)
    return np.asarray(picture.resize((wide, high), Image.Resampling.BILINEAR, box=box))


@cache
def _torch_resizes_faster() -> bool:
    """Torch has a fast way with bytes on processors that have AVX2; Pillow's is the same everywhere."""
    import torch

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def open_image(data: bytes | str | os.PathLike[str]) -> Any:
    """A picture of Pillow's, not decoded yet."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "Asked to decode a picture, which needs the package pillow.", advice="Type: pip install pillow"
        ) from None
    source: Any = io.BytesIO(data) if isinstance(data, (bytes, bytearray, memoryview)) else open_file(data)
    try:
        return Image.open(source)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"The picture cannot be decoded: {error}.", advice="Write it again, or leave it out.") from None
