"""The gradient noise scale of a run: as a figure and in the JSON document."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import RecordError
from paceline.record.inside import Folder
from paceline.record.noise import read_noise
from paceline.reports.report import Figure
from paceline.units import percent

if TYPE_CHECKING:
    from paceline.converge.noise.critical_batch import CriticalBatch

HOW = (
    "Estimated from gradient norms of two batch sizes, over the second half of the run: the batch size at which both "
    "steps and samples cost twice their minimum. The interval comes from resampling blocks of steps."
)


def figure(found: CriticalBatch, batch: float) -> Figure:
    """The estimate, and what it means for the run's own batch."""
    high = "no bound" if math.isinf(found.high) else f"{found.high:,.0f}"
    detail = f"95 %: {found.low:,.0f} to {high}" + (f"; this run's batch: {batch:,.0f}" if batch else "")
    if math.isinf(found.batch):
        above = f"above {found.low:,.0f}"
        noisy = f"noise scale: {above} samples: noise dominates the gradient ({found.steps} measured steps)"
        return Figure("critical batch", above, HOW, detail, said=noisy)
    said = (
        f"noise scale: {found.batch:,.0f} samples (95 %: {found.low:,.0f} – {high}; {found.steps} measured steps, "
        f"{found.first} to {found.last})."
    )
    if batch:
        step, sample = (percent(share, digits=0) for share in (found.speed(batch), found.efficiency(batch)))
        said += (
            f" At this run's batch of {batch:,.0f}, a step makes {step} of the progress of an infinite batch, and a "
            f"sample {sample} of the progress at the smallest batch."
        )
    return Figure("critical batch", f"{found.batch:,.0f}", HOW, detail, said=said)


def find_noise(record: Folder | Path) -> CriticalBatch | None:
    """None if nothing could be measured; a notice of the run gives the reason."""
    from paceline.converge.noise.critical_batch import critical_batch  # imports numpy

    try:
        return critical_batch(read_noise(record))
    except (RecordError, OSError):
        return None


def noise_document(found: CriticalBatch | None) -> dict[str, Any] | None:
    """The estimate for the JSON document. JSON has no infinity, which becomes null."""
    if found is None:
        return None
    numbers = {"batch": found.batch, "low": found.low, "high": found.high}
    told: dict[str, Any] = {name: None if math.isinf(value) else value for name, value in numbers.items()}
    return told | {"steps": found.steps, "first": found.first, "last": found.last}
