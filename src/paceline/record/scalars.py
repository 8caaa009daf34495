"""A step as numbers by name, as charts of other programs show them: TensorBoard, wandb, MLflow."""

from __future__ import annotations

import math

from paceline.record.phases import PHASES
from paceline.record.schema import Step


def scalars(step: Step) -> dict[str, float]:
    """A step's scalars by tag, without those that are unknown: most short steps on a GPU are not split into phases."""
    found: dict[str, float] = {}
    if step.loss is not None or not step.finite:
        found["loss"] = math.nan if step.loss is None else step.loss
    training = step.total - step.evaluation  # otherwise an evaluation would look like a drop in throughput
    if step.samples and training > 0:
        found["samples_per_second"] = step.samples / training
    found["step_seconds/total"] = step.total
    if step.split:
        found |= {f"step_seconds/{part}": getattr(step, part) for part in PHASES}
    if step.noise is not None:
        found["noise_scale"] = step.noise
    return found
