"""Random numbers that depend on what they are for, and on nothing that came before: a seed, an epoch, a place."""

from __future__ import annotations

import numpy as np


def generator(seed: int, *numbers: int) -> np.random.Generator:
    """The same stream for the same numbers, on every worker and in every process."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *numbers])))
