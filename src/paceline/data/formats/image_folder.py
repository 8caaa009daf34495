"""Folders of images, with a folder for each class."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import UsageError

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
