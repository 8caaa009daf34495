"""The file `noise.rankR.jsonl`: one worker's gradient norms in some steps, for the gradient noise scale."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.record.inside import Folder


class Noise(msgspec.Struct, kw_only=True):
    """Squared norms of two gradients of the same step. Each line alone is enough for an unbiased estimate."""

    step: int
    small: int  # samples of the smaller gradient
    large: int  # samples of the larger gradient
    of_small: float  # |gradient|² of the mean over the smaller number of samples
    of_large: float


def read_noise(folder: Path | Folder) -> list[Noise]:
    """The measurements of all workers, in order of steps. A torn last line is left out."""
    here = Folder.of(folder)
    found = [noise for name in here.names("noise.rank*.jsonl") for noise in here.file(name).lines(Noise)]
    return sorted(found, key=lambda noise: noise.step)
