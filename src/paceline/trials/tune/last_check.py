"""The last check of a search: the command that is printed at the end, run as a person would run it.

Trials are forks of one warm process. A command that is typed later starts cold: what was compiled, tuned or captured
in a trial may fail there, or take another way. So the kept mods and the unmodified script run in turn, each in a fresh
process, and only their speeds are quoted. A mod that does not deliver there is dropped, and the next set is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.trials.core.interval import LEAST, Interval, mean
from paceline.trials.core.result import Measured
from paceline.trials.tune.candidates import name_of
from paceline.trials.tune.noise import Mods
from paceline.trials.tune.trials import AS_IT_IS, DECISIVE, NOISY, NoTime, Trials
from paceline.trials.tune.verdict import Final

HELD_UP = 0.75  # the check is disturbed if the baseline slows down to this fraction, relative to the tuned script
MOST_PAIRS, MOST_UNDER_NOISE = 4, 8
# Mods that depend on what the process did before: the first to doubt if a set is slower in a fresh one.
IN_DOUBT = ("cuda_graphs", "compile")


class NoBaseline(Exception):
    """The unmodified script could not be measured in a fresh process."""


@dataclass(slots=True)
class Checked:
    """The result: the mods that deliver, why others were dropped, and what to note. `final` is None if no set that was
    checked delivers."""

    mods: Mods
    final: Final | None = None
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class LastCheck:
    """Checks the best set of a search, and the next best until one delivers. `gains`: the gain of each kept mod;
    `distance`: the loss difference of a trial."""

    def __init__(
        self, trials: Trials, gains: Mapping[str, float], distance: Callable[[Mods, Measured], float | None]
    ) -> None:
        self._trials, self._speeds, self._gains, self._distance = trials, trials.speeds, gains, distance
        # A set that gained in fresh processes, but less than it promised, so that a smaller one may gain more.
        self._short: Checked | None = None

    def carry_out(self, best: Mods) -> Checked:
        checked = Checked(best)
        while checked.mods:
            out = self._check(checked)
            if not out:
                break
            checked.dropped |= out
            checked.mods = tuple(mod for mod in checked.mods if mod not in out)
        short = self._short
        if short and short.final and (not checked.final or checked.final.gain * (1 + LEAST) < short.final.gain):
            return short
        return checked

    def _check(self, checked: Checked) -> dict[str, str]:
        """Sets the final figures; or returns the mods to drop, each with the reason."""
        mods = checked.mods
        promised = self._promised(mods)
        try:
            ratios, last = self._pairs(checked, promised)
        except NoTime:
            return dict.fromkeys(mods, "not confirmed by the last check (no time)")
        except NoBaseline as error:
            return dict.fromkeys(mods, f"not confirmed by the last check (the unmodified script failed: {error})")
        if not last.ok:
            doubted = self._doubted(mods)
            return {doubted: f"does not deliver in a fresh process: {last.status}: {last.message}"}
        if idle := {mod: f"does not deliver in a fresh process: {last.idle[mod]}" for mod in mods if mod in last.idle}:
            return idle
        gain, margin = mean(ratios), self._margin(ratios)
        if gain < promised * (1 - margin) and len(mods) > 1:
            doubted = self._doubted(mods)
            rest = self._promised(tuple(mod for mod in mods if mod != doubted), without=doubted)
            if rest > gain * (1 + LEAST):
                if gain > 1 + margin:
                    self._short = Checked(mods, dropped=dict(checked.dropped), notes=list(checked.notes))
                    self._set_figures(self._short, ratios, promised, last)
                return {doubted: f"does not deliver in a fresh process: {gain:.2f}× in place of {promised:.2f}×"}
        if not self._interval(ratios, promised).faster:
            return dict.fromkeys(mods, f"not confirmed by the last check ({gain:.2f}×)")
        self._set_figures(checked, ratios, promised, last)
        return {}

    def _set_figures(self, checked: Checked, ratios: list[float], promised: float, last: Measured) -> None:
        told, gain = self._interval(ratios, promised), mean(ratios)
        if gain < promised * (1 - self._margin(ratios)):
            checked.notes.append(f"the trials had promised {promised:.2f}×; in a fresh process it is {gain:.2f}×")
        if told.ratio < gain:
            checked.notes.append(
                f"the unmodified script was slower in the last check than before ({gain:.2f}× in place of "
                f"{promised:.2f}×): the gain is computed with the earlier speed"
            )
        checked.final = Final(
            mods=list(checked.mods),
            samples_per_s=self._trials.alone.speed(checked.mods),
            gain=told.ratio,
            gain_low=told.low,
            gain_high=told.high,
            pairs=min(len(ratios), len(self._trials.alone.of(AS_IT_IS))),
            memory=last.memory,
            loss_difference=self._distance(checked.mods, last),
        )

    def _margin(self, ratios: list[float]) -> float:
        return self._speeds.margin(len(ratios), last=True)

    def _interval(self, ratios: list[float], promised: float) -> Interval:
        """The gain, and bounds that hold all evidence: the noise of the trials, the spread of the pairs and, of fewer
        than three pairs, what the trials had promised. If the unmodified script was held up in the check, the gain is
        the promised one, with bounds up to the larger: which of the two was disturbed is not known."""
        noise, own = self._speeds.interval(ratios, last=True), Interval.of(ratios)
        gain, margin = mean(ratios), self._margin(ratios)
        known = [noise.low, noise.high, own.low, own.high]
        if not own.known and promised > 1 + self._speeds.margin(1):
            known.append(promised)
        # Trials that show no gain say nothing: the machine became slower between them.
        if 1 + margin < promised < HELD_UP * gain:
            gain = promised
            known.append(promised / (1 + margin))
        return Interval(ratio=gain, low=min(known), high=max(known), pairs=len(ratios))

    def _pairs(self, checked: Checked, promised: float) -> tuple[list[float], Measured]:
        """The speed ratios of the set to the unmodified script, pair by pair, until they are clear; and the last trial
        of the set. Where time is left only for the set, its one trial is compared with earlier trials of the
        unmodified script, and counts if that is decisive."""
        ratios: list[float] = []
        after: Measured | None = None
        while True:
            try:
                # The tuned script first: if it fails, nothing else need be measured.
                after = self._trials.run_alone(checked.mods)
                if not after.ok or after.idle:
                    return ratios, after
                before = self._trials.run_alone(AS_IT_IS)
            except NoTime:
                fresh = self._trials.alone.speed(AS_IT_IS)  # of the check of an earlier set
                made = [trial.samples_per_s for trial in self._speeds.of(AS_IT_IS) if trial.ok]
                found = (
                    ratios or [after.samples_per_s / plain for plain in ([fresh] if fresh else made)] if after else []
                )
                if not after or mean(found) <= 1 + DECISIVE * self._speeds.margin(1, last=True):
                    raise
                if not fresh:
                    checked.notes.append(
                        "no time was left to run the unmodified script in a fresh process: the gain is relative to its "
                        "speed in the trials"
                    )
                return found, after
            if not before.ok:
                if ratios:
                    return ratios, after
                raise NoBaseline(before.message)
            ratios.append(after.samples_per_s / before.samples_per_s)
            pairs, gain = len(ratios), mean(ratios)
            margin = self._speeds.margin(pairs, last=True)
            as_promised = abs(gain / promised - 1) < margin
            if gain > 1 + (2 * DECISIVE if pairs == 1 else 1) * margin and (as_promised or pairs > 1):
                return ratios, after
            most = MOST_UNDER_NOISE if self._speeds.noise > NOISY else MOST_PAIRS
            if pairs == most or (pairs > 1 and gain + self._speeds.error(pairs) < 1 + LEAST):
                return ratios, after

    def _promised(self, mods: Mods, *, without: str = "") -> float:
        """The gain of a set, by its trials; of one that was not tried, by the gain of the mod that it is without."""
        if self._speeds.of(mods):
            return self._speeds.speed(mods) / self._speeds.speed(AS_IT_IS)
        return self._promised((*mods, without)) / self._gains.get(without, 1.0) if without else 1.0

    def _doubted(self, mods: Mods) -> str:
        """The mod to drop where no cause is known."""
        return next((mod for name in IN_DOUBT for mod in mods if name_of(mod) == name), mods[-1])
