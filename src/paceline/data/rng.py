"""Random generators that depend only on a seed, an epoch and a position, not on earlier draws."""

from __future__ import annotations

import numpy as np


def generator(seed: int, *numbers: int) -> np.random.Generator:
    """The same stream for the same numbers, on every worker and in every process."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *numbers])))
