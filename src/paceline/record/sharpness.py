"""The file `sharpness.json`: the sharpness of the loss at a run's final weights, measured by rank 0."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.record.inside import Folder
from paceline.record.writer import write_document


class RunSharpness(msgspec.Struct, kw_only=True):
    """Measured over the run's last batches, in eval mode. None: the value could not be measured, and `trouble` says
    why."""

    eigenvalue: float | None = None  # the largest eigenvalue of the loss's Hessian
    settled: bool = False  # the last iterations agreed on the eigenvalue
    iterations: int = 0
    loss: float | None = None
    radius: float = 0.0  # length of a random perturbation of each tensor, relative to the tensor's norm
    moved: float | None = None  # loss after the perturbation, as the mean over random directions
    worst: float | None = None  # … and the highest
    line: list[tuple[float, float | None]] = []  # position and loss; 0: weights of `line_from`, 1: this run's
    samples: int = 0
    trouble: str = ""


def solution_path(folder: Path) -> Path:
    """The file of the final weights, for a run with `SharpnessSettings.keep`."""
    return folder / "solution.pt"


def write_sharpness(folder: Path, found: RunSharpness) -> None:
    write_document(folder / "sharpness.json", found)


def read_sharpness(folder: Path | Folder) -> RunSharpness | None:
    """The content of the file; None if the measurement was not requested, or the script did not reach its end."""
    file = Folder.of(folder).file("sharpness.json")
    return msgspec.json.decode(file.read(), type=RunSharpness) if file.exists() else None
