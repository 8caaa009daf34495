"""The loss guard: compares the losses of a run with mods with those of the baseline. Runs nothing.

The baseline is the unmodified script, run twice from one seed and then from other seeds. Runs from other seeds are
equally good runs of the same script, so the distance between their losses is the scale for any difference; two runs
from one seed show the effect of rounding alone. A run with mods sees the same data in the same order, so its losses
must stay much closer to the baseline than those of another seed.

A distance is the mean absolute difference of two smoothed series over their first steps, relative to the size of the
losses. Distances are only compared over the same number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import msgspec

from paceline.trials.core.same_numbers import difference

Losses = Sequence[float | None]
# The promise of a mod about the script's numbers: the same, the same to rounding, those of another precision, or those
# of different mathematics (a larger batch), whose loss may fall faster per step but not slower.
Promise = Literal["same", "rounded", "other", "mathematics"]

COMPARED = 60  # most steps to compare: later, rounding errors have grown large in many networks
FEWEST = 5  # fewest losses for a comparison
WINDOW = 5  # steps of the smoothing window
SHARE = 0.5  # tolerance, as a fraction of the distance between seeds
REPEATED = 2.0  # tolerance is at least this many times the distance between equal runs
FLOOR = 1e-3  # smallest tolerance
# Relative limits at steps 1, 2 and 3, for mods that promise the same numbers. The second loss shows a wrong first
# update long before the curve does. The limits grow because rounding errors grow from step to step.
FIRST = (1e-4, 1e-3, 1e-2)


class Compared(msgspec.Struct, kw_only=True):
    """The result of a comparison. `distance` is None if there was nothing to compare, or no finite distance."""

    held: bool
    distance: float | None = None
    tolerance: float = 0.0
    first: float | None = None  # relative difference of the first loss
    steps: int = 0
    why: str = ""  # the reason for a refusal


class Standard(msgspec.Struct, kw_only=True):
    """The spread of the baseline's own runs, for the record."""

    steps: int
    repeated: float  # distance between equal runs
    seeds: float  # distance between runs from different seeds
    parted: int | None = None  # the step at which equal runs differ by more than rounding; None: no such step
    parted_by: float = 0.0  # the relative difference at that step
    notes: list[str] = []


@dataclass(frozen=True, slots=True)
class Guard:
    """The baseline's losses. `repeats`: runs from one seed; all runs are compared with the first. `seeds`: runs from
    other seeds. None is a step without a loss; only NaN and infinity are problems."""

    repeats: Sequence[Losses]
    seeds: Sequence[Losses]

    @property
    def trouble(self) -> str:
        """Why no run can be compared with this baseline, as a message; empty if runs can be compared."""
        for step, loss in enumerate(self.repeats[0][:FEWEST], 1):
            if loss is not None and not math.isfinite(loss):
                return f"the script's loss is {loss} at step {step}, without any mod"
        first = self.repeats[0][:COMPARED]
        numbers = sum(map(_is_number, first))
        if 0 < numbers < FEWEST <= len(first):
            return f"the script's loss is a number at only {numbers} of its first {len(first)} steps, without any mod"
        return ""

    @property
    def blind(self) -> bool:
        """There is no loss: the script calls backward on no scalar."""
        return not any(_is_number(loss) for loss in self.repeats[0])

    @property
    def standard(self) -> Standard:
        """The spread of the baseline's own runs."""
        if self.blind:
            note = "the script has no loss to compare, so only mods that promise the same numbers are tried"
            return Standard(steps=0, repeated=0.0, seeds=0.0, notes=[note])
        at = self._steps(len(self.repeats[0]))
        told = Standard(steps=len(at), repeated=self._repeated(at), seeds=self._between(at))
        told.parted, told.parted_by = self._parted(at)
        if told.parted is not None:
            told.notes.append(
                f"the script is not deterministic: two runs from one seed differ by {_percent(told.parted_by)} at "
                f"step {told.parted}. Smaller changes of the loss cannot be detected"
            )
        elif self.seeds and told.seeds <= FLOOR:
            told.notes.append(
                f"another seed changes the script's losses by only {told.seeds:.1e}; mods may change them by "
                f"{FLOOR:.0e}"
            )
        return told

    def compare(self, losses: Losses, promise: Promise, *, draws: bool = False) -> Compared:
        """Compares a run with mods of this promise with the baseline. `draws`: the mods may change the random numbers
        that the model draws (dropout under compile), so that even the first losses may differ."""
        if self.blind:
            held = promise in ("same", "rounded")
            return Compared(held=held, why="" if held else "the script has no loss to compare")
        at = self._steps(len(losses))
        broken = next((step for step in at if not _is_number(losses[step])), None)
        if broken is not None:
            return Compared(held=False, steps=len(at), why=f"the loss is not a finite number at step {broken + 1}")
        if len(at) < FEWEST:
            return Compared(held=False, steps=len(at), why=f"there are only {len(at)} losses to compare")
        base = self.repeats[0]
        parted = self._parted(at)[0] is not None
        if promise == "mathematics":
            distance, tolerance = self._distance(base, losses, at, above=True), self._tolerance(at, share=1.0)
        else:
            distance, tolerance = self._distance(base, losses, at), self._tolerance(at, parted=parted)
        why = ""
        if distance > tolerance:
            where = "above" if promise == "mathematics" else "away from"
            why = f"its losses are {_percent(distance)} {where} the baseline's; {_percent(tolerance)} is allowed"
        elif promise == "other" and not draws and not parted:
            if self._other_data(losses, at):
                why = "its losses rise and fall at other steps than the baseline's: the data or the updates differ"
        elif promise in ("same", "rounded") and not draws and not parted:
            for step, limit in zip(at, FIRST, strict=False):
                if (apart := _apart(base, losses, step)) > limit:
                    why = f"the loss of step {step + 1} differs by {apart:.1e}; {limit:.0e} is allowed"
                    break
        first = _apart(base, losses, at[0])
        return Compared(held=not why, distance=distance, tolerance=tolerance, first=first, steps=len(at), why=why)

    def _steps(self, length: int) -> list[int]:
        """The first steps at which all series of the baseline have a loss, counted from 0."""
        ours = (*self.repeats, *self.seeds)
        common = min(COMPARED, length, *map(len, ours))
        return [step for step in range(common) if all(_is_number(series[step]) for series in ours)]

    def _tolerance(self, at: Sequence[int], *, share: float = SHARE, parted: bool = False) -> float:
        repeated, between = self._repeated(at), self._between(at)
        if parted:  # equal runs differ anyway, so a run with mods may differ as much as another seed
            return max(FLOOR, REPEATED * repeated, REPEATED * between)
        return max(FLOOR, REPEATED * repeated, share * between)

    def _distance(self, one: Losses, other: Losses, at: Sequence[int], *, above: bool = False) -> float:
        """The distance of two series; with `above`, only steps at which `other` is larger count."""
        apart = [b - a for a, b in zip(_smooth(one, at), _smooth(other, at), strict=True)]
        base = [loss for step in at if (loss := self.repeats[0][step]) is not None]
        scale = max(fmean(map(abs, base)), max(base) - min(base), 1e-12)
        return fmean(max(0.0, found) if above else abs(found) for found in apart) / scale

    def _other_data(self, losses: Losses, at: Sequence[int]) -> bool:
        """Whether the loss rises and falls at other steps than in the baseline: that depends on the batches, not on the
        precision."""
        base, other = _rough(self.repeats[0], at), _rough(losses, at)
        apart = fmean(abs(a - b) for a, b in zip(base, other, strict=True))
        theirs = [fmean(abs(a - b) for a, b in zip(base, _rough(seed, at), strict=True)) for seed in self.seeds]
        return bool(theirs) and apart > max(SHARE * median(theirs), FLOOR * fmean(_smooth(self.repeats[0], at)))

    def _repeated(self, at: Sequence[int]) -> float:
        return max((self._distance(self.repeats[0], other, at) for other in self.repeats[1:]), default=0.0)

    def _between(self, at: Sequence[int]) -> float:
        everyone = [self.repeats[0], *self.seeds]
        found = [self._distance(a, b, at) for i, a in enumerate(everyone) for b in everyone[:i]]
        return median(found) if found else 0.0

    def _parted(self, at: Sequence[int]) -> tuple[int | None, float]:
        """The step at which equal runs differ by more than rounding, and by how much: at the first steps, or as much as
        different seeds differ."""
        base, far = self.repeats[0], self._repeated(at) > max(FLOOR, SHARE * self._between(at))
        for other in self.repeats[1:]:
            apart = {step: _apart(base, other, step) for step in at}
            if far or any(apart[step] > limit for step, limit in zip(at, FIRST, strict=False)):
                where = next((step for step in at if apart[step] > FIRST[0]), at[0])
                return where + 1, apart[where]
        return None, 0.0


def _is_number(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _apart(one: Losses, other: Losses, step: int) -> float:
    a, b = one[step], other[step]
    return math.inf if a is None or b is None else difference(a, b)


def _smooth(losses: Losses, at: Sequence[int]) -> list[float]:
    """The moving average of a loss series."""
    found = [loss for step in at if (loss := losses[step]) is not None]
    return [fmean(found[max(0, step - WINDOW + 1) : step + 1]) for step in range(len(found))]


def _rough(losses: Losses, at: Sequence[int]) -> list[float]:
    """The losses minus their moving average."""
    found = [loss for step in at if (loss := losses[step]) is not None]
    return [loss - smooth for loss, smooth in zip(found, _smooth(losses, at), strict=True)]


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2g} %"
