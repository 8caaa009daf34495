"""Folders of images, with a folder for each class."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import UsageError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")


def find_images(folder: str | os.PathLike[str]) -> tuple[list[tuple[str, int]], list[str]]:
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
