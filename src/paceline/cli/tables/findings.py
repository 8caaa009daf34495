"""The list of findings: largest gain first, with what to type."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from paceline.advise.finding import Finding, in_sentences


def show_findings(console: Console, found: list[Finding]) -> None:
    """Prints the findings, or one line if there are none."""
    console.print()
    if not found:
        console.print("No rule found anything to improve.", style="bold")
        return
    console.print("what to improve", style="bold")
    for number, finding in enumerate(found, 1):
        console.print(
            Text(f"{number:3}. ").append(_gains(finding).ljust(16), "bold").append(finding.title), soft_wrap=True
        )
        for line in (finding.command, in_sentences(finding.advice, finding.numbers)):
            if line:
                console.print(Text(f"     {'':16}{line}", "dim"), soft_wrap=True)
        if finding.proof:
            console.print(Text(f"     {'':16}{finding.proof}", "dim"), soft_wrap=True)


def _gains(finding: Finding) -> str:
    """The predicted gain and, if there is one, the measured gain; of a tie, that there is none."""
    told = "—" if finding.predicted_gain is None else f"{finding.predicted_gain:.2f}×"
    if finding.measured_gain is None:
        return told
    return f"{told} → " + ("no gain" if finding.tied else f"{finding.measured_gain:.2f}×")
