"""Finds images in folders, and decodes them. The size in an image's header is checked before memory is allocated."""

from __future__ import annotations

import io
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.size_limits import IMAGE, too_large
from paceline.data.storage import open_file
from paceline.errors import DataError, UsageError

Array = np.ndarray[Any, Any]
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF", "JPEG2000", "TGA")  # no format that runs a program
WIDE = ("I", "F")  # Pillow's modes with four bytes for each value
RAISE_LIMIT = "data.decode_image(…, max_bytes={})"


def decode_image(
    data: bytes | str | os.PathLike[str],
    *,
    mode: str = "RGB",
    shorter: int | None = None,
    crop: int | None = None,
    at_least: int | None = None,
    max_bytes: int = IMAGE,
) -> Array:
    """An image as an array (height, width, channels) of bytes. `shorter`: resizes the image so that its shorter side
    has this number of pixels. `crop`: keeps the square of this number of pixels in the middle. `at_least`: a JPEG may
    be decoded at a lower resolution, in a fraction of the time, as long as its shorter side keeps this number of
    pixels. `max_bytes`: refuses an image that is larger when it is decoded or resized."""
    quick = _decode_jpeg(data, max_bytes) if mode == "RGB" and at_least is None else None
    image: Any = _decode_by_pillow(data, mode, at_least, max_bytes) if quick is None else quick
    if shorter is None and crop is None:
        return np.asarray(image)
    wide, high = image.size if quick is None else image.shape[1::-1]
    scale = 1.0 if shorter is None else shorter / min(wide, high)
    size = round(wide * scale), round(high * scale)
    _check_size(f"The image, resized from {wide} × {high}", size, mode, max_bytes)
    if mode in ("RGB", "L") and _torch_resizes_faster():
        return _resized(np.array(image) if quick is None else image, size, crop)
    return _resized_by_pillow(image, size, crop)


def _decode_jpeg(data: bytes | str | os.PathLike[str], max_bytes: int = IMAGE) -> Array | None:
    """The same pixels as Pillow's in half the time. None if simplejpeg cannot decode the image: Pillow then decodes it,
    or raises the error."""
    if not isinstance(data, bytes) or data[:3] != b"\xff\xd8\xff" or (quick := _simplejpeg()) is None:
        return None
    try:
        high, wide, colours, _ = quick.decode_jpeg_header(data)
        if colours not in ("YCbCr", "Gray"):
            return None
        _check_size("The image", (wide, high), "RGB", max_bytes)
        pixels: Array = quick.decode_jpeg(data)
        return pixels
    except (ValueError, MemoryError):
        return None


def _decode_by_pillow(data: Any, mode: str, at_least: int | None, max_bytes: int) -> Any:
    image = open_image(data)
    try:
        if at_least is not None and image.format == "JPEG":
            image.draft(mode, (at_least, at_least))
        _check_size("The image", image.size, mode, max_bytes)
        image.load()
        return image.convert(mode) if image.mode != mode else image
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise errors of any type for damaged bytes
        raise _undecodable(error) from None


def _check_size(what: str, size: tuple[int, int], mode: str, max_bytes: int) -> None:
    """Raises DataError if an image of `size` (width, height) takes more than `max_bytes`."""
    wide, high = size
    need = wide * high * (4 if mode in WIDE else max(1, len(mode.partition(";")[0])))
    if need > max_bytes:
        raise too_large(f"{what} ({wide} × {high} pixels)", need, max_bytes, RAISE_LIMIT)


def _undecodable(error: Exception) -> DataError:
    reason = re.sub(r" <_io\.\w+ object at 0x\w+>", "", str(error)) or type(error).__name__  # Pillow names its stream
    return DataError(f"The image cannot be decoded: {reason}.", advice="Write the image again, or leave it out.")


@cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _place(size: tuple[int, int], crop: int | None) -> tuple[int, int, int, int]:
    """The part of an image of `size` that is kept: left, top, width, height."""
    wide, high = size
    left, top = (0, 0) if crop is None else ((wide - crop) // 2, (high - crop) // 2)
    if left < 0 or top < 0:
        raise DataError(
            f"The image has {wide} × {high} pixels, fewer than crop={crop}.",
            advice="Choose a smaller crop, or resize the image first: shorter=N.",
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


def _resized_by_pillow(image: Any, size: tuple[int, int], crop: int | None) -> Array:
    from PIL import Image

    left, top, wide, high = _place(size, crop)
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    across, down = image.width / size[0], image.height / size[1]
    box = (left * across, top * down, (left + wide) * across, (top + high) * down)
    return np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR, box=box))


@cache
def _torch_resizes_faster() -> bool:
    """Torch resizes bytes faster than Pillow on processors with AVX2 only."""
    import torch

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@cache
def _formats() -> tuple[str, ...]:
    """The formats that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def open_image(data: bytes | str | os.PathLike[str]) -> Any:
    """A Pillow image, not decoded yet."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "Decoding images needs the package pillow, which is not installed.", advice="Type: pip install pillow"
        ) from None
    source: Any = io.BytesIO(data) if isinstance(data, (bytes, bytearray, memoryview)) else open_file(data)
    try:
        return Image.open(source, formats=_formats())
    except Image.DecompressionBombError as error:
        raise DataError(
            f"The image cannot be decoded, because it is over Pillow's own limit: {error}",
            advice="If you trust the file, raise both limits: PIL.Image.MAX_IMAGE_PIXELS = N, and max_bytes=N here.",
        ) from None
    except Exception as error:
        raise _undecodable(error) from None


# -- folders of images ------------------------------------------------------------------------------------------------


ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")


def find_images(folder: str | os.PathLike[str]) -> tuple[list[tuple[str, int]], list[str]]:
    """Paths and labels of a folder that has a folder for each class, and the names of the classes, all sorted."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"{folder} is not a folder.", advice="Give a folder of images: DIR/CLASS/NAME.jpg.")
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    found = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if not found:
        raise UsageError(
            f"{folder} has no images in its {len(classes)} class folders.",
            advice="Store images as DIR/CLASS/NAME.jpg.",
        )
    return found, classes
