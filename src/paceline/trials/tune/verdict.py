"""The verdict of `tune`: one row per mod, and the total gain of the kept mods."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from paceline.trials.core.result import Measured
from paceline.trials.tune.loss_guard import Standard
from paceline.units import count, percent


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
    """One mod. `before`: samples/s of the set that the mod was tried on, beside the trials with the mod; `after`: with
    the mod; `gain`: their ratio. All three are None if the trial failed. `loss_difference` is None if there was no
    loss."""

    mod: str
    before: float | None = None
    after: float | None = None
    gain: float | None = None
    loss_difference: float | None = None
    kept: bool = False
    code: Reason = Reason.NOT_TRIED
    reason: str = "not tried"  # `code` in words
    on: list[str] = []  # the mods that it was tried with

    def compare(self, after: float, gain: float) -> None:
        """`gain` is that of pairs of trials, and `after` the speed in them: in others the machine's was another."""
        self.before, self.after, self.gain = after / gain, after, gain

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
    is no gain; `gain_low` and `gain_high` are the bounds of its interval. No pairs: the unmodified script's speed is
    that of its trials."""

    mods: list[str]
    samples_per_s: float
    gain: float
    gain_low: float
    gain_high: float
    pairs: int
    memory: int = 0
    loss_difference: float | None = None


class Known(StrEnum):
    """What a search knows of the mods at its end."""

    GAIN = "gain"
    NO_GAIN = "no gain"  # every mod that can act was tried
    NOT_CONFIRMED = "not confirmed"  # a mod gained in a first trial, and that was not repeated
    NOT_TRIED = "not tried"  # some mods were not tried, and the others do not gain
    NOTHING = "nothing"  # the search failed, or was interrupted


class Conclusion(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a search: `sentence` for the terminal, a page and the preset, `short` for a list. Every place that
    tells the result takes it from here."""

    known: Known
    sentence: str = ""
    short: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """The results of a search. `problem` says why nothing could be tuned. `final` without mods means that no gain was
    confirmed: `conclusion` says what is known then. `final` is also None after an interrupt."""

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
    def conclusion(self) -> Conclusion:
        """What is known of the mods, in words."""
        if self.final is None:
            return Conclusion(known=Known.NOTHING, short=self.problem)
        if self.final.mods:
            told = f"{self.final.gain:.3g}× faster"
            return Conclusion(known=Known.GAIN, sentence=f"{' '.join(self.final.mods)}: {told}", short=told)
        able = [row for row in self.mods if row.code is not Reason.IDLE]
        doubted = [row for row in able if row.code is Reason.NOT_CONFIRMED]
        untried = [row for row in able if row.code is Reason.NOT_TRIED]
        left = f"{len(untried)} of {count(len(able), 'mod')} {'was' if len(untried) == 1 else 'were'} not tried"
        noise = f"the noise of this machine ({percent(self.noise)} per trial)"
        if doubted:
            best = max(doubted, key=lambda row: row.gain or 0.0)
            seen = f"{best.mod} gained {best.gain:.2f}× in a first trial, and " if best.gain else ""
            ended = any(words in best.reason for words in ("budget ended", "no time"))
            that = "that" if seen else "a gain"
            why = (
                f"the budget ended before {that} could be repeated"
                if ended
                else f"the last check did not repeat {that}"
            )
            return Conclusion(
                known=Known.NOT_CONFIRMED,
                sentence=f"no confirmed gain: {seen}{why}" + (f"; {left}" if untried else ""),
                short="no confirmed gain",
            )
        if untried:
            tried = len(able) - len(untried)
            of_others = f"no gain found: {tried} of {count(len(able), 'mod')} tried, none of them above {noise}; "
            return Conclusion(
                known=Known.NOT_TRIED,
                sentence=(of_others if tried else "no gain found: ") + f"{left}, because the budget ended",
                short=left,
            )
        return Conclusion(
            known=Known.NO_GAIN,
            sentence=f"nothing to gain: no mod gains more than {noise}" if able else "nothing to gain: no mod can act",
            short="nothing to gain",
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
