"""The verdict of `tune`: one row per mod, and the total gain of the kept mods."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from paceline.trials.core.result import Measured
from paceline.trials.tune.loss_guard import Standard


class Reason(StrEnum):
    """Why a mod was kept or not."""

    NOT_TRIED = "not tried"
    ASKED_FOR = "asked for"  # kept: given with --mod
    GAINS = "gains"  # kept
    FAILED = "failed"  # a trial with the mod failed
    REFUSED = "refused"  # by the loss guard
    NO_GAIN = "no gain"
    NOT_CONFIRMED = "not confirmed"  # a first gain was not repeated
    OUTDONE = "outdone"  # by another value of the same mod, or by a mod that excludes it
    IDLE = "idle"  # not in force in this script
    NOT_DELIVERED = "not delivered"  # in a fresh process, by the last check
    REDUNDANT = "redundant"  # no gain on top of the other kept mods


class Problem(StrEnum):
    """Why nothing could be tuned."""

    BUDGET = "budget"  # too short for the fewest trials
    NO_STEP = "no step"  # the script made no optimizer step
    TOO_SHORT = "too short"  # too few steps
    LOSS = "loss"  # the loss of the unmodified script is not a finite number
    FAILED = "failed"  # the unmodified script failed


class Row(msgspec.Struct, kw_only=True):
    """One mod. `before`: samples/s of the set that the mod was tried on; `after`: with the mod; `gain`: their ratio.
    All three are None if the trial failed. `loss_difference` is None if there was no loss."""

    mod: str
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    loss_difference: float | None = None
    kept: bool = False
    code: Reason = Reason.NOT_TRIED
    reason: str = "not tried"  # `code` in words
    on: list[str] = []  # the mods that it was tried with

    def settle(self, code: Reason, reason: str) -> None:
        """Sets whether the mod is kept, and why."""
        self.kept = code in (Reason.ASKED_FOR, Reason.GAINS)
        self.code, self.reason = code, reason


class Speed(msgspec.Struct, kw_only=True):
    """The throughput of a set of mods: the mean, the slowest and the fastest of its trials."""

    samples_per_s: float
    low: float
    high: float
    batch: int
    memory: int
    step: dict[str, float]
    trials: int


class Final(msgspec.Struct, kw_only=True):
    """The kept mods compared with the unmodified script at the end, in pairs of fresh processes. `gain` is a ratio: 1.0
    is no gain. No pairs: the unmodified script's speed is that of its trials."""

    mods: list[str]
    samples_per_s: float
    gain: float
    gain_low: float
    gain_high: float
    pairs: int
    memory: int = 0
    loss_difference: float | None = None


class Verdict(msgspec.Struct, kw_only=True):
    """The results of a search. `problem` says why nothing could be tuned. Without a problem, a `final` without mods
    means that there is nothing to gain. `final` is also None after an interrupt, because no gain was confirmed."""

    baseline: Speed | None = None
    mods: list[Row] = []
    final: Final | None = None
    noise: float = 0.0  # relative standard deviation of a trial
    guard: Standard | None = None
    notes: list[str] = []
    budget: float | None = None
    spent: float = 0.0
    trials: int = 0
    cut_short: bool = False  # the budget ended before all candidates were tried
    problem: str = ""
    problem_code: Problem | None = None
    interrupted: bool = False

    @property
    def unconfirmed(self) -> str:
        """The result in words, if mods gained in a first trial, and none is kept; else empty."""
        doubted = [row for row in self.mods if row.code is Reason.NOT_CONFIRMED]
        if self.final is None or self.final.mods or not doubted:
            return ""
        best = max(doubted, key=lambda row: row.gain or 0.0)
        seen = f"{best.mod} gained {best.gain:.2f}× in a first trial, and " if best.gain else ""
        ended = any(words in best.reason for words in ("budget ended", "no time"))
        return f"no confirmed gain: {seen}" + (
            "the budget ended before that could be repeated" if ended else "the last check did not repeat that"
        )


def speed(trials: list[Measured]) -> Speed | None:
    """The throughput over the trials of one set; None if none succeeded."""
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
