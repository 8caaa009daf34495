"""Proves findings: measures each finding's mod in trials, to compare the measured gain with the predicted one.

The trials run in rounds: the unmodified script, then each mod once. A mod is compared with the baselines before and
after it, because the machine's speed may drift. A gain is named only if the rounds of the mod and those of the
unmodified script do not overlap; else it is a tie. Findings with the same mod share its trials. Of a finding with
several mods that may fix it, all are tried, and the fastest is kept; of several that overlap, the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Protocol

import msgspec

from paceline.advise.finding import Finding, command
from paceline.trials.core.interval import LEAST, mean
from paceline.trials.core.result import Measured, Status
from paceline.trials.tune.candidates import name_of, settings_of, together

SETTLED = 1.5  # seconds of steady steps after which a trial ends
STEPS = 400  # most steps of a trial
# A loader's processes deliver in bursts and may start in each epoch, so that a short trial depends on where it ends.
LOADER_SETTLED, LOADER_STEPS = 3.0, 1600
ROUNDS = 3
BEATEN = 0.7  # of the speed of another mod for the same finding: a slower one is not measured again
CLOSE = 1.5  # a prediction within this factor of the measured gain is good


class Measurer(Protocol):
    """A bench, which measures a set of mods and returns failures as results."""

    def measure(self, name: str, *, mods: tuple[str, ...] | None = None, **changes: Any) -> Measured: ...


def prove(
    bench: Measurer,
    found: Sequence[Finding],
    *,
    mods: tuple[str, ...] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> bool:
    """Sets the measured gain of each finding, and `proof`. `mods` are the mods of the profiled run. Returns False if
    the unmodified script could not be measured, so that nothing is proven. An interrupt is raised again;
    findings measured before it keep their result."""
    choices = {finding.rule: [finding.mod, *finding.others] for finding in found if finding.mod}
    asked = list(dict.fromkeys(mod for mods_of_one in choices.values() for mod in mods_of_one))
    for finding in found:
        if not finding.mod:
            finding.proof = "by hand: no mod to try"
    if not asked:
        return True
    rounds = _Rounds(bench, mods, choices)
    try:
        base = rounds.baseline()
        if not base.ok:
            for finding in found:
                told = f"not tried: the unmodified script could not be measured ({base.message})"
                finding.proof = finding.proof or told
            return False
        for _ in range(ROUNDS):
            for mod in rounds.wanted():
                rounds.measure(mod)
            rounds.baseline()
    finally:
        for finding in found:
            if finding.rule in choices and rounds.baselines:
                _conclude(finding, choices[finding.rule], rounds)
        for mod in asked:
            if told := rounds.told(mod):
                tell(f"{mod}: {told}")
    return True


def error(finding: Finding) -> float | None:
    """The factor by which a prediction was off, 1.0 being exact; None if there is nothing to compare."""
    if not finding.predicted_gain or not finding.measured_gain:
        return None
    ratio = finding.predicted_gain / finding.measured_gain
    return max(ratio, 1 / ratio)


class _Rounds:
    """The trials so far. A mod that failed is not tried again."""

    def __init__(self, bench: Measurer, mods: tuple[str, ...], choices: dict[str, list[str]]) -> None:
        self._bench, self._mods, self._choices = bench, mods, choices
        self.baselines: list[Measured] = []  # those that were measured
        self.made: dict[str, list[tuple[int, Measured]]] = {}  # with the number of baselines before each
        self.failures: dict[str, Measured] = {}
        self._over = False  # the budget

    def baseline(self) -> Measured:
        measured = self._bench.measure(f"baseline.r{len(self.baselines) + 1}", mods=self._mods)
        self._over = self._over or measured.status is Status.BUDGET
        if measured.ok:
            self.baselines.append(measured)
        return measured

    def measure(self, mod: str) -> None:
        trials = self.made.setdefault(mod, [])
        applied, changes = settings_of(together(self._mods, mod))
        if name_of(mod) == "loader":
            changes |= {"enough": LOADER_SETTLED, "steps": LOADER_STEPS}
        measured = self._bench.measure(f"{mod}.r{len(trials) + 1}", mods=applied, **changes)
        self._over = self._over or measured.status is Status.BUDGET
        if measured.ok:
            trials.append((len(self.baselines), measured))
        elif not trials or measured.status is not Status.BUDGET:
            self.failures[mod] = measured

    def wanted(self) -> Iterator[str]:
        """The mods of the next round, until the budget is over."""
        asked = dict.fromkeys(mod for mods in self._choices.values() for mod in mods)
        best = {rule: max(map(self._speed, mods)) for rule, mods in self._choices.items()}
        for mod in asked:
            beaten = all(
                0 < self._speed(mod) < BEATEN * best[rule] for rule, mods in self._choices.items() if mod in mods
            )
            if mod not in self.failures and not beaten and not self._over:
                yield mod

    def _speed(self, mod: str) -> float:
        trials = self.made.get(mod)
        return trials[-1][1].samples_per_s if trials else 0.0

    def gains(self, mod: str) -> list[float]:
        """The speed of each trial, relative to the baselines before and after it. Of a single trial, those of its
        slowest and fastest steps, too, which tell how far it can be trusted."""
        trials = self.made.get(mod, [])
        if len(trials) == 1:
            before, one = self._around(trials[0][0]), trials[0][1]
            return [one.low / before.high, one.samples_per_s / before.samples_per_s, one.high / before.low]
        return [one.samples_per_s / self._around(at).samples_per_s for at, one in trials]

    def _around(self, before: int) -> Measured:
        """The baselines before and after a trial, as one."""
        both = self.baselines[max(before - 1, 0) : before + 1]
        return msgspec.structs.replace(
            both[0],
            samples_per_s=mean([one.samples_per_s for one in both]),
            low=min(one.low or one.samples_per_s for one in both),
            high=max(one.high or one.samples_per_s for one in both),
        )

    @property
    def noise(self) -> tuple[float, float]:
        """The lowest and the highest speed of a baseline, relative to its neighbours."""
        speeds = [one.samples_per_s for one in self.baselines]
        if len(speeds) < 3:
            return min(speeds) / max(speeds), max(speeds) / min(speeds)
        # Of those between two others only: a drift of the machine cancels out there.
        ratios = [
            here / mean([before, after]) for before, here, after in zip(speeds, speeds[1:], speeds[2:], strict=False)
        ]
        return min(1.0, *ratios), max(1.0, *ratios)

    def told(self, mod: str) -> str:
        if gains := self.gains(mod):
            return f"{median(gains):.2f}×" + (" (a tie)" if self.ties(mod) else "")
        return self.failures[mod].message if mod in self.failures else ""

    def ties(self, mod: str) -> bool:
        """Whether the rounds of a mod overlap with those of the unmodified script."""
        gains, (low, high) = self.gains(mod), self.noise
        return min(gains) <= max(high, 1 + LEAST) and max(gains) >= min(low, 1 - LEAST)


def _conclude(finding: Finding, mods: Sequence[str], rounds: _Rounds) -> None:
    """Sets the result of a finding from the trials so far."""
    measured = {mod: gains for mod in mods if (gains := rounds.gains(mod))}
    if not measured:
        failed = next((rounds.failures[mod] for mod in mods if mod in rounds.failures), None)
        if failed is not None:
            finding.proof = f"{failed.status}: {failed.message}"
        return
    fastest = max(measured, key=lambda mod: median(measured[mod]))
    equal = [mod for mod, gains in measured.items() if max(gains) >= min(measured[fastest])]
    mod = equal[0]
    if finding.mod != mod:
        finding.mod, finding.advice = mod, command(mod)
    gains = measured[mod]
    finding.measured_gain, finding.measured_low, finding.measured_high = median(gains), min(gains), max(gains)
    finding.tied, off = rounds.ties(mod), error(finding)
    count, between = len(rounds.made[mod]), f"{min(gains):.2f}× to {max(gains):.2f}×"
    told = f"{between} in {count} rounds" if count > 1 else f"{between} by the steps of one round"
    if finding.tied:
        low, high = rounds.noise
        told = f"no gain was measured: {told}; the unmodified script varies from {low:.2f}× to {high:.2f}×"
    elif off is not None and off > CLOSE:
        told += f"; the prediction was off by {off:.2g} ×"
    if len(equal) > 1:
        told += f"; equally fast: {', '.join(other for other in equal if other != mod)}"
    finding.proof = f"measured {told}" if not finding.tied else told
    if name_of(mod) == "batch":
        finding.proof += "; the batches and losses change"
