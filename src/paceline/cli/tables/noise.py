"""The gradient noise scale of a run, as text and as part of the JSON document."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.errors import RecordError
from paceline.units import percent

if TYPE_CHECKING:
    from paceline.converge.noise.critical_batch import CriticalBatch


def show_noise(console: Console, found: CriticalBatch | None, batch: float) -> None:
    """Prints the estimate, and what it means for the run's own batch."""
    if found is None:
        console.print("noise scale: not measured", soft_wrap=True)
        return
    if math.isinf(found.batch):
        console.print(
            f"noise scale: above {found.low:,.0f} samples: noise dominates the gradient ({found.steps} measured steps)",
            soft_wrap=True,
        )
        return
    console.print(
        f"noise scale: {found.batch:,.0f} samples (95 %: {found.low:,.0f} – {_bound(found.high)}; {found.steps} "
        f"measured steps, {found.first} to {found.last}). At this run's batch of {batch:,.0f}, a step makes "
        f"{percent(found.speed(batch), digits=0)} of the progress of an infinite batch, and a sample "
        f"{percent(found.efficiency(batch), digits=0)} of the progress at the smallest batch.",
        soft_wrap=True,
    )


def find_noise(record: Path) -> CriticalBatch | None:
    """None if nothing could be measured; a notice of the run gives the reason."""
    from paceline.converge.noise.critical_batch import critical_batch  # imports numpy

    try:
        return critical_batch(record)
    except RecordError:
        return None


def noise_document(found: CriticalBatch | None) -> dict[str, Any] | None:
    """The estimate for the JSON document. JSON has no infinity, which becomes null."""
    if found is None:
        return None
    numbers = {"batch": found.batch, "low": found.low, "high": found.high}
    told: dict[str, Any] = {name: None if math.isinf(value) else value for name, value in numbers.items()}
    return told | {"steps": found.steps, "first": found.first, "last": found.last}


def _bound(value: float) -> str:
    return "no bound" if math.isinf(value) else f"{value:,.0f}"
