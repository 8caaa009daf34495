"""What `tune` found: a row for each mod, and what all that were kept give together."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from paceline.trials.core.result import Measured
from paceline.trials.tune.loss_guard import Standard


class Reason(StrEnum):
    """Why a mod was kept, or not."""

    NOT_TRIED = "not tried"
    ASKED_FOR = "asked for"  # kept: with --mod
    GAINS = "gains"  # kept
    FAILED = "failed"  # a trial with it gave no speed
    REFUSED = "refused"  # by the loss guard
    NO_GAIN = "no gain"
    NOT_CONFIRMED = "not confirmed"  # it seemed to gain
    OUTDONE = "outdone"  # by another value of the same mod, or by a mod that excludes it
    REDUNDANT = "redundant"  # next to the others


class Problem(StrEnum):
    """Why nothing could be tuned."""

    BUDGET = "budget"  # too short for the trials that say something
    NO_STEP = "no step"  # the script made no optimizer step
    TOO_SHORT = "too short"  # too few steps
    LOSS = "loss"  # the script's own is not a finite number
    FAILED = "failed"  # the script, as it is


class Row(msgspec.Struct, kw_only=True):
    """One mod. Speeds are samples a second: `before` is the best set that it was tried on, `after` is with it. `gain`
    is their ratio. All three are None where it gave no speed, and `loss_difference` where there was no loss."""

    mod: str
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    loss_difference: float | None = None
    kept: bool = False
    code: Reason = Reason.NOT_TRIED
    reason: str = "not tried"  # the same as a sentence
    on: list[str] = []  # the mods that it was tried with

    def settle(self, code: Reason, reason: str) -> None:
        """Kept or not, and why."""
        self.kept = code in (Reason.ASKED_FOR, Reason.GAINS)
        self.code, self.reason = code, reason


class Speed(msgspec.Struct, kw_only=True):
    """How fast a set of mods is: over its trials, the mean and the slowest and the fastest."""

    samples_per_s: float
    low: float
    high: float
    batch: int
    memory: int
    step: dict[str, float]
    trials: int


class Final(msgspec.Struct, kw_only=True):
    """The kept mods against the script as it is, in pairs of trials at the very end. `gain` is a ratio: 1.0 is none."""

    mods: list[str]
    samples_per_s: float
    gain: float
    gain_low: float
    gain_high: float
    pairs: int
    memory: int = 0
    loss_difference: float | None = None


class Verdict(msgspec.Struct, kw_only=True):
    """All of it. `problem` says why nothing could be done; without one, `final` without mods says that there is nothing
    to gain. `final` is None, too, where it was interrupted: nothing is claimed that was not confirmed."""

    baseline: Speed | None = None
    mods: list[Row] = []
    final: Final | None = None
    noise: float = 0.0  # relative standard deviation of a trial
    guard: Standard | None = None
    notes: list[str] = []
    budget: float | None = None
    spent: float = 0.0
    trials: int = 0
    cut_short: bool = False  # by the budget: something was left to try
    problem: str = ""
    problem_code: Problem | None = None
    interrupted: bool = False


def speed(trials: list[Measured]) -> Speed | None:
    """Of trials of one set; None where none ended well."""
    good = [trial for trial in trials if trial.ok]
    if not good:
        return None
    speeds = [trial.samples_per_s for trial in good]
    return Speed(
        samples_per_s=sum(speeds) / len(speeds),
        low=min(speeds),
        high=max(speeds),
        batch=good[-1].batch,
        memory=max(trial.memory for trial in good),
        step=good[-1].step,
        trials=len(good),
    )
