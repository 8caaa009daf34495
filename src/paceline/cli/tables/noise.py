"""The gradient noise scale of a run, for a person and as a part of the JSON document."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.converge.noise.critical_batch import CriticalBatch, critical_batch
from paceline.errors import RecordError
from paceline.units import percent


def show_noise(console: Console, found: CriticalBatch | None, batch: float) -> None:
    """The estimate, and what it says of the run's own batch."""
    if found is None:
        console.print("noise scale: not measured", soft_wrap=True)
        return
    if math.isinf(found.batch):
        console.print(
            f"noise scale: above {found.low:,.0f} samples: the gradient is lost in its noise "
            f"(over {found.steps} measured steps)",
            soft_wrap=True,
        )
        return
    console.print(
        f"noise scale: {found.batch:,.0f} samples (95 %: {found.low:,.0f} – {_bound(found.high)}; {found.steps} "
        f"measured steps, {found.first} to {found.last}). At this run's batch of {batch:,.0f} a step makes "
        f"{percent(found.speed(batch), digits=0)} of the progress that any batch could, "
        f"a sample {percent(found.efficiency(batch), digits=0)}.",
        soft_wrap=True,
    )


def find_noise(record: Path) -> CriticalBatch | None:
    """None where nothing could be measured: the run has said why."""
    try:
        return critical_batch(record)
    except RecordError:
        return None


def noise_document(found: CriticalBatch | None) -> dict[str, Any] | None:
    """JSON has no sign for infinity: null."""
    if found is None:
        return None
    numbers = {"batch": found.batch, "low": found.low, "high": found.high}
    told: dict[str, Any] = {name: None if math.isinf(value) else value for name, value in numbers.items()}
    return told | {"steps": found.steps, "first": found.first, "last": found.last}


def _bound(value: float) -> str:
    return "no bound" if math.isinf(value) else f"{value:,.0f}"
