"""Downsamples long lines to the resolution of a screen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.charts.chart import Line

POINTS = 1500  # about one per pixel column of a wide chart


def thinned(line: Line, most: int = POINTS) -> Line:
    """The line with at most `most` points. The minimum and maximum of each stretch stay, so that no peak is lost."""
    if len(line.x) <= most:
        return line
    values = np.array([np.nan if value is None else value for value in line.y], dtype=float)
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(values)), most // 2):
        part = values[stretch]
        if np.isnan(part).all():
            kept.append(int(stretch[0]))
            continue
        kept += sorted({int(stretch[np.nanargmin(part)]), int(stretch[np.nanargmax(part)])})
    return replace(line, x=[line.x[i] for i in kept], y=[line.y[i] for i in kept])
