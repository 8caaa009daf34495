"""The gradient noise scale, from what runs have measured: how large a batch may be before more of it is of no use.

With gradients of two batch sizes b < B of the same step,

    |G|² ≈ (B·|G_B|² − b·|G_b|²) / (B − b)          the gradient itself
    tr Σ ≈ (|G_b|² − |G_B|²) / (1/b − 1/B)          the spread of one sample's gradient

are unbiased, and B_simple = tr Σ / |G|². One step's are very noisy, and a mean of quotients is not the quotient of
means: numerator and denominator are averaged apart. But not over all of a run: where the scale is s, a batch of B takes
1 + s/B steps for one of the largest batch's, Σ (1 + s/B) for all of them, and so the mean of s over steps decides. At
rates near the largest that do not diverge |G|² swings by factors of ten from step to step, and the quotient of means
over all of them is that of the few largest. So steps are put together in windows that are only as long as it takes to
tell the gradient from its noise; the scale is the mean of theirs. Knows nothing of torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from paceline.errors import RecordError
from paceline.record.noise import Noise, read_noise

CLEAR = 16  # times as many samples as the scale: a gradient of which a sixteenth is noise is clear
BLOCKS = 32  # of consecutive steps: within one, steps are alike, and do not count as many
DRAWS = 2000


class CriticalBatch(msgspec.Struct, kw_only=True):
    """The batch at which steps and samples both cost twice their least. `low` and `high` hold it in 95 of 100 cases;
    infinite where the gradient is lost in its noise."""

    batch: float
    low: float
    high: float
    spread: float  # tr Σ
    signal: float  # |G|²
    steps: int  # that were measured
    first: int
    last: int

    def efficiency(self, batch: float) -> float:
        """Progress per sample at this batch, as a part of the best: 1 / (1 + batch/critical)."""
        return 1.0 / (1.0 + batch / self.batch) if self.batch > 0 else 0.0

    def speed(self, batch: float) -> float:
        """Progress per step at this batch, as a part of the best: 1 / (1 + critical/batch)."""
        return 1.0 / (1.0 + self.batch / batch)


def estimates(noise: Noise) -> tuple[float, float]:
    """tr Σ and |G|² from one measurement: unbiased, noisy, and negative at times."""
    b, large = noise.small, noise.large
    spread = (noise.of_small - noise.of_large) / (1.0 / b - 1.0 / large)
    signal = (large * noise.of_large - b * noise.of_small) / (large - b)
    return spread, signal


def critical_batch(record: str | Path | Sequence[Noise], *, last: float = 0.5) -> CriticalBatch:
    """The estimate from the record of a run with `--noise-scale`, with its uncertainty.

    `last` is the part of the run that counts: the scale grows while a model learns, and the first steps say little.
    RecordError where nothing was measured.
    """
    lines = list(record) if not isinstance(record, str | Path) else read_noise(Path(record))
    lines = [line for line in lines if math.isfinite(line.of_small + line.of_large) and line.small < line.large]
    if not lines:
        raise RecordError(
            f"No gradient noise was measured in {record if isinstance(record, str | Path) else 'what was given'}.",
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
    """The mean over steps of the scale in their windows. `whole` is that of all of them as one, at a batch of `large`;
    infinite where there is nothing but noise."""
    if math.isinf(whole):
        return math.inf
    size = max(1, math.ceil(CLEAR * whole / large))
    total, counted, begin = 0.0, 0, 0
    for end in range(size, len(values) + 1, size):
        # The last one takes what is left over; and one that is nothing but noise goes on into the next.
        window = values[begin : end if end + size <= len(values) else len(values)]
        if window.mean(0)[1] > 0:
            total, counted, begin = total + len(window) * _ratio(window), counted + len(window), end
    return total / counted if counted else whole


def _ratio(values: np.ndarray) -> float:
    spread, signal = values.mean(0)
    return max(0.0, float(spread / signal)) if signal > 0 else math.inf


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Of the quotient of means, by drawing blocks of steps again and again, always the same ones."""
    blocks = np.array([block.mean(0) for block in np.array_split(values, min(BLOCKS, len(values)))])
    if len(blocks) < 4:
        return 0.0, math.inf
    drawn = np.random.default_rng(0).integers(len(blocks), size=(DRAWS, len(blocks)))
    ratios = sorted(_ratio(blocks[those]) for those in drawn)
    return ratios[int(0.025 * DRAWS)], ratios[int(0.975 * DRAWS) - 1]
