"""The list of findings in a terminal: largest gain first, with what to type."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.advise.finding import Finding, in_sentences
from paceline.reports.report import Sentence

GAINS = 16  # columns of the gains


def findings(found: Sequence[Finding]) -> list[Sentence]:
    """One line if there are none."""
    if not found:
        return [Sentence("\nNo rule found anything to improve.", "strong")]
    said = [Sentence("\nwhat to improve", "strong")]
    for number, finding in enumerate(found, 1):
        said.append(Sentence(f"{number:3}. {_gains(finding).ljust(GAINS)}{finding.title}"))
        below = (finding.command, in_sentences(finding.advice, finding.numbers), finding.proof)
        said += [Sentence(f"     {'':{GAINS}}{line}", "quiet") for line in below if line]
    return said


def _gains(finding: Finding) -> str:
    """The predicted gain and, if there is one, the measured gain; of a tie, that there is none."""
    told = "—" if finding.predicted_gain is None else f"{finding.predicted_gain:.2f}×"
    if finding.measured_gain is None:
        return told
    return f"{told} → " + ("no gain" if finding.tied else f"{finding.measured_gain:.2f}×")
