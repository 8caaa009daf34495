"""The file `sharpness.json`: how sharp the minimum is that a run ended in; of rank 0."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.record.inside import Folder
from paceline.record.private import write_file


class RunSharpness(msgspec.Struct, kw_only=True):
    """Over the run's last batches, in eval mode. What could not be measured is None, and `trouble` says why."""

    eigenvalue: float | None = None  # the largest one of the loss's Hessian
    settled: bool = False  # the last iterations agreed on it
    iterations: int = 0
    loss: float | None = None
    radius: float = 0.0  # by which part of its norm each tensor is moved …
    moved: float | None = None  # … and the loss then, the mean over random directions
    worst: float | None = None
    line: list[tuple[float, float | None]] = []  # place, loss; 0 is the solution of `line_from`, 1 this run's
    samples: int = 0
    trouble: str = ""


def solution_path(folder: Path) -> Path:
    """Where a run that was asked to leaves its weights."""
    return folder / "solution.pt"


def write_sharpness(folder: Path, found: RunSharpness) -> None:
    write_file(folder / "sharpness.json", msgspec.json.format(msgspec.json.encode(found)))


def read_sharpness(folder: Path | Folder) -> RunSharpness | None:
    """None where nothing was written: nobody asked, or the run ended before its end."""
    file = Folder.of(folder).file("sharpness.json")
    return msgspec.json.decode(file.read(), type=RunSharpness) if file.exists() else None
