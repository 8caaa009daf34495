"""Proves findings: measures each finding's mod in a trial, to compare the measured gain with the predicted one.

The unmodified script is measured at the start, after every few trials, and at the end. A mod is compared with the
baselines before and after it, because the machine's speed may drift. Findings with the same mod share a trial. Of a
finding with several mods that may fix it, all are tried, and the fastest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.advise import Finding
from paceline.advise.wording import command
from paceline.trials.core.result import Measured
from paceline.trials.tune.candidates import name_of, settings_of, together
from paceline.trials.tune.noise import mean

SETTLED = 1.5  # seconds of steady steps after which a trial ends
STEPS = 400  # most steps of a trial
FRESH = 3  # trials of mods between two trials of the unmodified script
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
    """Sets `measured_gain` and `proof` of each finding. `mods` are the mods of the profiled run. Returns False if the
    unmodified script could not be measured, so that nothing is proven. An interrupt is raised again; findings measured
    before it keep their result."""
    choices = {finding.rule: [finding.mod, *finding.others] for finding in found if finding.mod}
    asked = list(dict.fromkeys(mod for mods_of_one in choices.values() for mod in mods_of_one))
    for finding in found:
        if not finding.mod:
            finding.proof = "by hand: no mod to try"
    if not asked:
        return True
    base = bench.measure("baseline.r1", mods=mods)
    if not base.ok:
        for finding in found:
            finding.proof = finding.proof or f"not tried: the unmodified script could not be measured ({base.message})"
        return False
    for start in range(0, len(asked), FRESH):
        group = asked[start : start + FRESH]
        measured = {mod: _trial(bench, mods, mod) for mod in group}
        again = bench.measure(f"baseline.r{start // FRESH + 2}", mods=mods)
        speeds = [one.samples_per_s for one in (base, again) if one.ok]
        for mod, trial in measured.items():
            _tell([one for one in found if mod in choices.get(one.rule, [])], mod, trial, mean(speeds), tell)
        base = again if again.ok else base
    return True


def error(finding: Finding) -> float | None:
    """The factor by which a prediction was off, 1.0 being exact; None if there is nothing to compare."""
    if not finding.predicted_gain or not finding.measured_gain:
        return None
    ratio = finding.predicted_gain / finding.measured_gain
    return max(ratio, 1 / ratio)


def _trial(bench: Measurer, mods: tuple[str, ...], mod: str) -> Measured:
    applied, changes = settings_of(together(mods, mod))
    return bench.measure(mod, mods=applied, **changes)


def _tell(found: Sequence[Finding], mod: str, trial: Measured, before: float, tell: Callable[[str], None]) -> None:
    for finding in found:
        if not trial.ok:
            finding.proof = finding.proof or f"{trial.status}: {trial.message}"
            continue
        if finding.measured_gain is not None and trial.samples_per_s / before <= finding.measured_gain:
            continue
        if finding.mod != mod:
            finding.advice = command(mod)
        finding.mod, finding.measured_gain = mod, trial.samples_per_s / before
        off = error(finding)
        finding.proof = (
            f"measured {before:,.4g} → {trial.samples_per_s:,.4g} samples/s"
            + ("" if off is None or off <= CLOSE else f"; the prediction was off by {off:.2g} ×")
            + ("; the batches and losses change" if name_of(mod) == "batch" else "")
        )
    gain = f"{trial.samples_per_s / before:.2f}×" if trial.ok else trial.message
    tell(f"{mod}: {gain}")
