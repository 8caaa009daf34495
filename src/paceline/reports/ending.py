"""How a run has ended, in its first words: succeeded, failed with the cause, or stopped; and where its time went."""

from __future__ import annotations

import time
from pathlib import Path

from paceline.errors import RecordError
from paceline.record import read_steps
from paceline.record.phases import CHECK
from paceline.record.schema import Outcome
from paceline.reports.report import Sentence
from paceline.script.output.overlay import process_start
from paceline.trials.core.wall_clock import WallClock, read_wall_clock
from paceline.units import seconds

SHOWN = 0.01  # of the whole time: a part below it is left out, if it is one that most runs do not have


def verdict_of(outcome: Outcome) -> str:
    """The first words of a summary; empty if the run has succeeded."""
    cause = outcome.cause.splitlines()[0].rstrip(".") if outcome.cause else ""
    if outcome.interrupted:
        return f"stopped: {cause[:1].lower()}{cause[1:]}" if cause else "stopped"
    if not outcome.exit_code:
        return ""
    if outcome.failed_rank is None:
        return f"failed: {cause}" if cause else f"failed with exit code {outcome.exit_code}"
    return f"failed: worker {outcome.failed_rank} {cause}"


def ending(outcome: Outcome) -> list[Sentence]:
    """How a run has ended, unless it has succeeded."""
    verdict = verdict_of(outcome)
    return [Sentence(verdict, "bad" if outcome.exit_code and not outcome.interrupted else "")] if verdict else []


def wall_clock_of(record: Path, warm_up: int, outcome: Outcome) -> WallClock | None:
    """The wall clock of the run that has just ended in this process; None if it made no step, or lost its record."""
    if outcome.unrecorded:
        return None
    try:
        steps = read_steps(record, 0)
    except RecordError:
        return None
    ended = time.time()
    return read_wall_clock(steps, warm_up, began=process_start(), ended=ended, evaluated_after=outcome.evaluated_after)


def wall_clock_line(clock: WallClock) -> str:
    """`wall clock: start 4.1 s, …`, which add up to the total."""
    parts = {
        "start": clock.start,
        "warm-up": clock.warm_up,
        "steps": clock.steps,
        "evaluation": clock.evaluation,
        CHECK: clock.check,
        "between attempts": clock.between,
        "end": clock.end,
    }
    rare = ("evaluation", CHECK, "between attempts")
    told = [f"{name} {seconds(part)}" for name, part in parts.items() if name not in rare or part > SHOWN * clock.total]
    return f"wall clock: {', '.join(told)}"
