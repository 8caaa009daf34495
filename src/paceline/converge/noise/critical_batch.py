"""The gradient noise scale, from the measurements of a run: the batch size beyond which larger batches help little.

With gradients of two batch sizes b < B of the same step,

    |G|² ≈ (B·|G_B|² − b·|G_b|²) / (B − b)          the squared norm of the true gradient
    tr Σ ≈ (|G_b|² − |G_B|²) / (1/b − 1/B)          the variance of one sample's gradient

are unbiased estimates, and B_simple = tr Σ / |G|². The estimates of one step are very noisy, and a mean of quotients is
not the quotient of means: numerator and denominator are averaged separately, but not over the whole run. If the scale
is s, a batch of B takes 1 + s/B steps for each step of a very large batch, so the mean of s over steps matters. At
learning rates just below divergence |G|² varies by factors of ten from step to step, and the quotient of means over all
steps would be that of the few largest. So steps are averaged in windows, just long enough to tell the gradient from its
noise, and the scale is the mean over windows. This file does not need torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from paceline.errors import RecordError
from paceline.record.noise import Noise, read_noise

CLEAR = 16  # samples per window, as a multiple of the scale: then a sixteenth of the gradient is noise
BLOCKS = 32  # blocks of consecutive steps: steps within a block are correlated, so blocks are resampled
DRAWS = 2000


class CriticalBatch(msgspec.Struct, kw_only=True):
    """The batch size at which both steps and samples cost twice their minimum. `low` and `high` are a 95 % confidence
    interval; infinite if the gradient is lost in its noise."""

    batch: float
    low: float
    high: float
    spread: float  # tr Σ
    signal: float  # |G|²
    steps: int  # measured
    first: int
    last: int

    def efficiency(self, batch: float) -> float:
        """Progress per sample at this batch, as a fraction of the best: 1 / (1 + batch/critical)."""
        return 1.0 / (1.0 + batch / self.batch) if self.batch > 0 else 0.0

    def speed(self, batch: float) -> float:
        """Progress per step at this batch, as a fraction of the best: 1 / (1 + critical/batch)."""
        return 1.0 / (1.0 + self.batch / batch)


def estimates(noise: Noise) -> tuple[float, float]:
    """tr Σ and |G|² from one measurement: unbiased, noisy, and sometimes negative."""
    b, large = noise.small, noise.large
    spread = (noise.of_small - noise.of_large) / (1.0 / b - 1.0 / large)
    signal = (large * noise.of_large - b * noise.of_small) / (large - b)
    return spread, signal


def critical_batch(record: str | Path | Sequence[Noise], *, last: float = 0.5) -> CriticalBatch:
    """The estimate from the record of a run with `--noise-scale`, with its uncertainty.

    `last` is the fraction of the run that counts: the scale grows during training, and the first steps say little.
    RecordError if nothing was measured.
    """
    lines = list(record) if not isinstance(record, str | Path) else read_noise(Path(record))
    lines = [line for line in lines if math.isfinite(line.of_small + line.of_large) and line.small < line.large]
    if not lines:
        raise RecordError(
            f"{record if isinstance(record, str | Path) else 'The given list'} holds no gradient noise measurements.",
            advice="paceline run -n 2 --noise-scale train.py; one worker needs several backwards before each step.",
        )
    by_step: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        by_step.setdefault(line.step, []).append(estimates(line))
    numbers = sorted(by_step)
    numbers = numbers[-max(1, math.ceil(last * len(numbers))) :]
    values = np.array([np.mean(by_step[number], axis=0) for number in numbers])
    spread, signal = values.mean(0)
    large = float(np.mean([line.large for line in lines]))
    whole = _ratio(values)
    batch = _scale(values, whole, large)
    low, high = _interval(values)
    wider = batch / whole if 0 < whole < math.inf else 1.0
    return CriticalBatch(
        batch=batch,
        low=low * wider,
        high=high * wider,
        spread=float(spread),
        signal=float(signal),
        steps=len(numbers),
        first=numbers[0],
        last=numbers[-1],
    )


def _scale(values: np.ndarray, whole: float, large: float) -> float:
    """The mean over steps of the scale in their windows. `whole` is the scale of all steps together, `large` the batch
    size. Infinite if there is only noise."""
    if math.isinf(whole):
        return math.inf
    size = max(1, math.ceil(CLEAR * whole / large))
    total, counted, begin = 0.0, 0, 0
    for end in range(size, len(values) + 1, size):
        # The last window takes the remaining steps; a window that is only noise is merged into the next.
        window = values[begin : end if end + size <= len(values) else len(values)]
        if window.mean(0)[1] > 0:
            total, counted, begin = total + len(window) * _ratio(window), counted + len(window), end
    return total / counted if counted else whole


def _ratio(values: np.ndarray) -> float:
    spread, signal = values.mean(0)
    return max(0.0, float(spread / signal)) if signal > 0 else math.inf


def _interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the quotient of means, by bootstrap over blocks of steps, with a fixed seed."""
    blocks = np.array([block.mean(0) for block in np.array_split(values, min(BLOCKS, len(values)))])
    if len(blocks) < 4:
        return 0.0, math.inf
    drawn = np.random.default_rng(0).integers(len(blocks), size=(DRAWS, len(blocks)))
    ratios = sorted(_ratio(blocks[those]) for those in drawn)
    return ratios[int(0.025 * DRAWS)], ratios[int(0.975 * DRAWS) - 1]
