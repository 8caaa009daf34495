"""Pictures: folders of them, and decoding. A picture says how large it is: that is checked before it is decoded."""

from __future__ import annotations

import io
import os
from functools import cache
from typing import Any

import numpy as np

from paceline.data.size_limits import PICTURE, too_large
from paceline.data.storage import open_file
from paceline.errors import DataError, UsageError

Array = np.ndarray[Any, Any]
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF", "JPEG2000", "TGA")  # none that run a program
WIDE = ("I", "F")  # modes of Pillow's with four bytes for each value
RAISE_LIMIT = "data.decode_image(…, max_bytes={})"


def decode_image(
    data: bytes | str | os.PathLike[str],
    *,
    mode: str = "RGB",
    shorter: int | None = None,
    crop: int | None = None,
    at_least: int | None = None,
    max_bytes: int = PICTURE,
) -> Array:
    """A picture as an array (height, width, channels) of bytes. `shorter`: resized until its shorter side has so many
    pixels. `crop`: of that the square in the middle; only what is kept of it is made. `at_least`: a JPEG may be decoded
    smaller than it is, as long as its shorter side keeps so many pixels, which takes a fraction of the time.
    `max_bytes`: refuses a picture that has more when it is decoded, or resized."""
    quick = _decode_jpeg(data, max_bytes) if mode == "RGB" and at_least is None else None
    picture: Any = _decode_by_pillow(data, mode, at_least, max_bytes) if quick is None else quick
    if shorter is None and crop is None:
        return np.asarray(picture)
    wide, high = picture.size if quick is None else picture.shape[1::-1]
    scale = 1.0 if shorter is None else shorter / min(wide, high)
    size = round(wide * scale), round(high * scale)
    _check_size(f"The picture, resized from {wide} × {high}", size, mode, max_bytes)
    if mode in ("RGB", "L") and _torch_resizes_faster():
        return _resized(np.array(picture) if quick is None else picture, size, crop)
    return _resized_by_pillow(picture, size, crop)


def _decode_jpeg(data: bytes | str | os.PathLike[str], max_bytes: int = PICTURE) -> Array | None:
    """The same pixels as Pillow's in half the time. None where that cannot be had: then Pillow tells why, or can."""
    if not isinstance(data, bytes) or data[:3] != b"\xff\xd8\xff" or (quick := _simplejpeg()) is None:
        return None
    try:
        high, wide, colours, _ = quick.decode_jpeg_header(data)
        if colours not in ("YCbCr", "Gray"):
            return None
        _check_size("The picture", (wide, high), "RGB", max_bytes)
        pixels: Array = quick.decode_jpeg(data)
        return pixels
    except (ValueError, MemoryError):
        return None


def _decode_by_pillow(data: Any, mode: str, at_least: int | None, max_bytes: int) -> Any:
    picture = open_image(data)
    try:
        if at_least is not None and picture.format == "JPEG":
            picture.draft(mode, (at_least, at_least))
        _check_size("The picture", picture.size, mode, max_bytes)
        picture.load()
        return picture.convert(mode) if picture.mode != mode else picture
    except DataError:
        raise
    except Exception as error:  # its decoders raise whatever Python raises for bytes that make no sense
        raise _undecodable(error) from None


def _check_size(what: str, size: tuple[int, int], mode: str, max_bytes: int) -> None:
    """Before memory is taken for so many pixels."""
    wide, high = size
    need = wide * high * (4 if mode in WIDE else max(1, len(mode.partition(";")[0])))
    if need > max_bytes:
        raise too_large(f"{what} ({wide} × {high} pixels)", need, max_bytes, RAISE_LIMIT)


def _undecodable(error: Exception) -> DataError:
    told = str(error) or type(error).__name__
    return DataError(f"The picture cannot be decoded: {told}.", advice="Write it again, or leave it out.")


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


@cache
def _formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


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
        return Image.open(source, formats=_formats())
    except Image.DecompressionBombError as error:
        raise DataError(
            f"The picture cannot be decoded, because it is over Pillow's own limit: {error}",
            advice="If you trust it, raise both limits: PIL.Image.MAX_IMAGE_PIXELS = N, and max_bytes=N here.",
        ) from None
    except Exception as error:
        raise _undecodable(error) from None
