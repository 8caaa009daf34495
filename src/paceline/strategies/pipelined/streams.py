"""The script's random streams as a plain value, to be sent to another worker."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.script import rng


def packed() -> list[Any]:
    """The present state of all streams."""
    states, python, numpy = rng.snapshot()
    version, inner, gauss = python
    name, keys, *rest = numpy
    return [states, [version, list(inner), gauss], [name, np.asarray(keys, dtype=np.uint32).tobytes(), *rest]]


def put(state: list[Any]) -> None:
    """Continues the streams from this state."""
    states, (version, inner, gauss), (name, keys, *rest) = state
    numpy = (name, np.frombuffer(keys, dtype=np.uint32), *rest)
    # A worker that has not used its GPU yet has no stream there.
    rng.restore((states, (version, tuple(inner), gauss), numpy))
