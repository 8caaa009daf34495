"""Saving stops the training."""

from __future__ import annotations

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding, percent
from paceline.units import seconds

SHARE = 0.03  # share of the run's steps: saving once per epoch usually takes less
REMAINS = 0.1  # share of saving, if only the copy to the host stops the training


def find(evidence: Evidence) -> Finding | None:
    """`torch.save` stops the training for a visible part of the time.

    Fixed by hand: save less often, or copy the weights to the host and write them in a thread
    (`torch.distributed.checkpoint.async_save`). Predicted: a tenth of the time remains. Only a run that saves shows it:
    `paceline profile --to-the-end`.
    """
    facts = evidence.first_facts
    if facts is None or not facts.saves or not facts.seconds:
        return None
    spent = sum(save.seconds for save in facts.saves)
    if spent < SHARE * facts.seconds:
        return None
    longest = max(facts.saves, key=lambda save: save.seconds)
    return Finding(
        rule="checkpoints",
        title=f"{percent(spent / facts.seconds)} of the time is saving: {len(facts.saves)} times, "
        f"up to {seconds(longest.seconds)}",
        evidence=[
            Figure("time in torch.save", spent, "s"),
            Figure("times", len(facts.saves)),
            Figure("longest", longest.seconds, "s"),
            Figure("time of all steps", facts.seconds, "s"),
        ],
        where=longest.line,
        predicted_gain=facts.seconds / max(facts.seconds - spent * (1 - REMAINS), 1e-9),
        how="only a copy to the host stops the training: a tenth",
        advice="Save less often, or copy to the host and write in a thread: torch.distributed.checkpoint.async_save",
    )
